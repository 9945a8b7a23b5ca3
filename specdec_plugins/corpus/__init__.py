"""From raw parallel text to scored translations: preparation, distillation, averaging, scoring.

The shell scripts in ``scripts/`` call the modules of this package, each a command line (``cli``):

- ``decontaminate``: merges corpora into one training text (``reading``, ``cleaning``);
- ``prepare``: turns parallel files into a data-bin (``tokenising``, ``binarising``);
- ``wmt``: downloads, unpacks and prepares the published training sets;
- ``distill``: translates a training set with the verifier (``teacher``);
- ``checkpoints``: averages checkpoints, and finds the one that a training goes on from;
- ``scoring``: BLEU, chrF, compound-split BLEU, paired bootstrap.

All commands of the project resume long work through ``resume``.
"""
