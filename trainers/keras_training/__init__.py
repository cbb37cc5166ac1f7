"""The trainings of Keras: network, loop, steps of an epoch, best weights and export.

Rows and parameters come in, and a SavedModel goes out. keras_classifier and keras_horovod add the strategy.
"""
