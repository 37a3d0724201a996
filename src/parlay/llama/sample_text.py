"""A page of plain text that any vocabulary can tokenise: what prices are measured with.

A mixture of experts reads as many of its weights as the tokens of a pass differ, so a price that
is to hold for people's text must be measured with text. Knows no model.
"""

SAMPLE = """\
The harbour wakes before the town does. At five the first boats come in past the lighthouse, low in
the water, and the gulls that slept on the roofs of the market follow them along the quay. Marta
weighs each crate, writes the number into a grey book, and calls it across to the office, where her
brother enters it a second time. "Forty-one kilos of hake, twelve of squid," she says; he repeats it
and prints a label. By seven everything is sold, and the two of them sit down to coffee and argue
about the price of ice.

To cook a simple soup for four people, cut two onions, three carrots and a stalk of celery into
small pieces. Warm two spoons of oil in a large pot, add the vegetables with a little salt, and let
them soften for ten minutes without browning. Pour in a litre and a half of water, add a cup of
lentils and a bay leaf, and simmer until the lentils are tender, about 25 minutes. Taste, add pepper
and the juice of half a lemon, and serve it with bread.

def moving_average(values, width):
    total, means = 0.0, []
    for i, value in enumerate(values):
        total += value
        if i >= width:
            total -= values[i - width]
        means.append(total / min(i + 1, width))
    return means

The function above keeps a running total, so each step takes the same time however wide the window
is. For the values 3, 5, 8, 13 and a width of 2 it returns [3.0, 4.0, 6.5, 10.5]. A second version
could use an array library, which would be shorter and, for long lists, about thirty times as fast.

In 1854 a physician marked every case of cholera on a map of the streets around a pump. The points
gathered at one corner; the handle was taken off, and the outbreak, which had begun to fade, ended.
What convinced others was not one argument but several that met: the brewery whose workers drank
beer and stayed well, the widow miles away who had the water brought to her because she liked its
taste, and the workhouse with a well of its own. Good evidence often looks like that: small facts,
found by walking, that have nothing in common but the conclusion.

Question: which is heavier, a kilogram of feathers or a kilogram of steel? Answer: neither, they
weigh the same; but the feathers fill a large sack, and most people picture the sack.

| city   | trains a day | delay in minutes |
|--------|--------------|------------------|
| Basel  | 212          | 1.8              |
| Porto  | 96           | 4.1              |
| Turku  | 58           | 2.6              |
"""
