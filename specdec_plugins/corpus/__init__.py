"""From raw parallel text to scored translations: preparation, distillation, averaging, scoring.

The shell scripts in ``scripts/`` call the modules of this package, each a command line (``cli``):

- ``decontaminate``: one training text of many corpora (``reading``, ``cleaning``);
- ``prepare``: any parallel files to a data-bin (``tokenising``, ``binarising``);
- ``wmt``: the published training sets, downloaded and unpacked;
- ``distill``: a training set translated by the verifier (``teacher``);
- ``checkpoints``: the mean of several, and trainings cut into pieces;
- ``scoring``: BLEU, chrF, compound-split BLEU, paired bootstrap.

``resume`` is the one way to resume long work, here and everywhere else in the project.
"""
