"""Programs in the manner of Chainer's and ChainerMN's examples. Only their import lines differ from
what ChainerMN would run.

They are small, and train on data that they draw. Each ``main`` takes the command line. With
``chainer`` in the place of ``mnpar`` in the import lines they run on Chainer 7.8 and ChainerMN.
"""
