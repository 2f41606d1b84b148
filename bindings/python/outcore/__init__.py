"""Machine learning on data bigger than memory."""

from ._native import VERSION as __version__
