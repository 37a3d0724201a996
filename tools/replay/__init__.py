"""Controllers played over recordings and tables of prices, without a model: see `__main__`."""
