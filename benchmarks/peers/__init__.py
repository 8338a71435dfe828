"""The same round as others run it, written by us from what their published code does; one core, no accelerator.

What changes the amount of training is equal on all sides: samples, batches with the last one, E = 1, SGD with momentum.
What they do around it is theirs: how samples are loaded, kept, evaluated and averaged.
"""
