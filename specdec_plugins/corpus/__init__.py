"""From raw parallel text to scored translations: preparation, distillation, averaging, scoring.

The shell scripts in ``scripts/`` only set defaults and call the modules of this package:

- ``prepare``: any parallel files to a data-bin (``reading``, ``cleaning``, ``steps`` below it);
- ``wmt``: the published training sets, downloaded and unpacked (``archives``, ``sgm``);
- ``distill``: a training set translated by the verifier;
- ``averaging``: the mean of several checkpoints;
- ``scoring``: BLEU, chrF, compound-split BLEU, paired bootstrap.
"""
