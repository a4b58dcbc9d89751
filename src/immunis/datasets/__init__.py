"""Data in: the digits that come with scikit-learn, and files the user brings."""

from immunis.datasets.common import Tasks, data_file
from immunis.datasets.digit_parity import digit_parity
from immunis.datasets.digits import digits
from immunis.datasets.house_prices import house_prices
from immunis.datasets.images import images
from immunis.datasets.layouts import read_images
from immunis.datasets.mnist import mnist_digits, mnist_images, mnist_pair
from immunis.datasets.npz import npz

__all__ = [
    "Tasks",
    "data_file",
    "digit_parity",
    "digits",
    "house_prices",
    "images",
    "mnist_digits",
    "mnist_images",
    "mnist_pair",
    "npz",
    "read_images",
]
