"""Data in: the digits that come with scikit-learn, and files the user brings."""

from immunis.data.sources.digit_images import digit_parity as digit_parity
from immunis.data.sources.digit_images import digits as digits
from immunis.data.sources.digit_images import mnist_digits as mnist_digits
from immunis.data.sources.digit_images import mnist_images as mnist_images
from immunis.data.sources.digit_images import mnist_pair as mnist_pair
from immunis.data.sources.house_price_table import house_prices as house_prices
from immunis.data.sources.image_folders import images as images
from immunis.data.sources.npz_file import npz as npz
from immunis.data.sources.text_tasks import text as text
