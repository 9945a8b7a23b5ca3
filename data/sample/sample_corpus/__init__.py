"""A generator of English-German sentence pairs: lexicon, grammar, structures, corpus."""
