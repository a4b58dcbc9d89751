"""Data in: the digits that come with scikit-learn, and files the user brings."""

from immunis.data.sources.common import Tasks, data_file
from immunis.data.sources.digit_parity import digit_parity
from immunis.data.sources.digits import digits
from immunis.data.sources.house_prices import house_prices
from immunis.data.sources.images import images
from immunis.data.sources.layouts import read_images
from immunis.data.sources.mnist import mnist_digits, mnist_images, mnist_pair
from immunis.data.sources.npz import npz

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
