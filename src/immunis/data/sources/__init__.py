"""Data in: the digits that come with scikit-learn, and files the user brings."""

from immunis.data.sources.common import Tasks as Tasks
from immunis.data.sources.digits import digit_parity as digit_parity
from immunis.data.sources.digits import digits as digits
from immunis.data.sources.digits import mnist_digits as mnist_digits
from immunis.data.sources.digits import mnist_images as mnist_images
from immunis.data.sources.digits import mnist_pair as mnist_pair
from immunis.data.sources.house_prices import house_prices as house_prices
from immunis.data.sources.images import images as images
from immunis.data.sources.npz import npz as npz
