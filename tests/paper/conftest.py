"""Both experiments on small stand-ins for their data, each run once."""

import pytest

from immunis.paper import house_prices, mnist, reproduce


@pytest.fixture(scope="session")
def small_house():
    return house_prices.Settings(seeds=2, epochs=(1, 2), budget=5, curve=5)


@pytest.fixture(scope="session")
def small_mnist():
    return mnist.Settings(pairs=((0, 1), (1, 0)), seeds=2, epochs=2, attack_rows=40, budget=5)


@pytest.fixture(scope="session")
def house_record(house_folder, small_house):
    with pytest.warns(UserWarning, match="sha256"):
        return reproduce("house-prices", house_folder, small_house)


@pytest.fixture(scope="session")
def mnist_record(mnist_folder, small_mnist):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mnist, "TRAINED", ("algorithm_1", "text_step"))
        with pytest.warns(UserWarning, match="not the original MNIST files"):
            return reproduce("mnist", mnist_folder, small_mnist)
