"""Shifts, triggers, iterators and splits of data against what Chainer 7.8.1 recorded."""

import pytest

import mnpar
import mnpar.datasets
import mnpar.iterators
import mnpar.training.extensions
import mnpar.training.triggers
from tests.golden import training
from tests.golden.recording import compare, load

RECORDED = load("chainer_training")


@pytest.mark.parametrize("name", training.SHIFTS)
def test_learning_rates_of_each_update_are_chainers(name):
    compare(RECORDED[name], training.evaluate_shift(mnpar, training.SHIFTS[name]))


@pytest.mark.parametrize("name", training.TRIGGERS)
def test_a_trigger_fires_when_chainers_does(name):
    compare(RECORDED[name], training.evaluate_trigger(mnpar, training.TRIGGERS[name]))


@pytest.mark.parametrize("name", training.ITERATORS)
def test_batches_and_epochs_are_chainers(name):
    compare(RECORDED[name], training.evaluate_iterator(mnpar, training.ITERATORS[name]))


@pytest.mark.parametrize("name", training.SPLITS)
def test_parts_of_data_are_chainers(name):
    compare(RECORDED[name], training.evaluate_split(mnpar, training.SPLITS[name]))
