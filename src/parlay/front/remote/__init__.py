"""Backends elsewhere: vLLM, SGLang, llama.cpp's server or another Parlay, by URL.

Knows their HTTP; loads no model.
"""
