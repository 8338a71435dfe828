"""The same federation written with Flower's own simulation, as a yardstick for whole rounds.

`measure.py` is ours: it makes Flower's environment, exports the federation and runs the simulation there. The other
modules run in that environment, which has Flower, Ray and torch, and nothing of fedssa.
"""
