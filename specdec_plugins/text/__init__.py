"""Raw text on its way to a model and back, for every model and every door."""
