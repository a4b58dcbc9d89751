"""One small network and one audit of it, for all tests of audits."""

import pytest

from helpers.audits import run
from immunis import immunize
from immunis.attacks.probes import kernel
from immunis.data.sources import digit_parity
from immunis.models.zoo import pretrained_mlp


@pytest.fixture(scope="package", autouse=True)
def _few_random_features():
    """Kernel regression on 1024 random features takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "WIDTH", 128)
        yield


@pytest.fixture(scope="package")
def tasks():
    return digit_parity(shots=60)


@pytest.fixture(scope="package")
def models(tasks):
    network = pretrained_mlp(tasks.primary, (32, 16), epochs=15)
    return {
        "original": network,
        "erase": immunize(network, tasks.primary, tasks.harmful, "erase", strength=0.01),
    }


@pytest.fixture(scope="package")
def result(models, tasks):
    return run(models, tasks, ["ridge", "knn", "kernel", "drop_last"], defender=tasks.harmful)
