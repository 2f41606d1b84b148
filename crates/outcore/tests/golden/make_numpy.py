"""Writes the golden files that come from NumPy. The outcore_* files are frozen and not written again."""

import pathlib

import numpy as np
from numpy.lib import format as npy

folder = pathlib.Path(__file__).parent


def save(name, array, version=None):
    with open(folder / f"numpy_{name}.npy", "wb") as file:
        npy.write_array(file, array, version=version)


x = np.arange(12.0).reshape(3, 4)
save("f32_3x4_row", x.astype("<f4"))
save("f64_3x4_column", np.asfortranarray(x))
save("f64_5", np.arange(5.0))
save("f32_2x3_version_2", np.arange(6, dtype="<f4").reshape(2, 3), (2, 0))
save("f32_2x3_version_3", np.arange(6, dtype="<f4").reshape(2, 3), (3, 0))
save("big_endian", np.arange(3, dtype=">f8"))
save("int64", np.arange(3))
save("records", np.zeros(3, dtype=[("a", "<f4"), ("b", "<f8", (2,))]))
save("objects", np.array([None, "x"], dtype=object))
save("scalar", np.array(1.0))
save("cube", np.zeros((2, 2, 2)))
