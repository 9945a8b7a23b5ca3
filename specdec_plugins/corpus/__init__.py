"""From raw parallel text to scored translations: preparation, distillation, averaging, scoring.

The modules with a command line (``cli``), which ``specdec`` starts:

- ``decontaminate``: merges corpora into one training text (``reading``, ``cleaning``);
- ``masks``: puts symbols in place of spans that a model is to copy;
- ``prepare``: turns parallel files into a data-bin (``tokenising``);
- ``wmt``: downloads, unpacks and prepares the published training sets;
- ``distill``: translates a training set with the verifier (``teacher``);
- ``checkpoints``: averages checkpoints, and finds the one that a training goes on from;
- ``scoring``: BLEU, chrF, compound-split BLEU, paired bootstrap.

All commands of the project resume long work through ``resume``.
"""
