"""Data in: the digits that come with scikit-learn, and files the user brings."""

from immunis.data.sources.common import Tasks
from immunis.data.sources.digits import digit_parity, digits
from immunis.data.sources.house_prices import house_prices
from immunis.data.sources.images import images
from immunis.data.sources.mnist import mnist_digits, mnist_images, mnist_pair
from immunis.data.sources.npz import npz

__all__ = [
    "Tasks",
    "digit_parity",
    "digits",
    "house_prices",
    "images",
    "mnist_digits",
    "mnist_images",
    "mnist_pair",
    "npz",
]
