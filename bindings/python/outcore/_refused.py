"""What arrays of NumPy and SciPy have and matrices on SSD do not: refused, with what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from .errors import ArgumentError

__all__ = ["Refusing"]


class Refusing:
    """Comparisons, arithmetic and functions of NumPy, element by element."""

    __slots__ = ()

    _NOUN: ClassVar[str]
    _WHAT: ClassVar[str]
    _COMPARED: ClassVar[str]
    _CALCULATED: ClassVar[str]
    _IN_MEMORY: ClassVar[str]
    """How all of it comes into memory."""
    _INSTEAD: ClassVar[Mapping[str, str]] = {}
    """What does out of core what a name is looked for."""
    _OF_MEMORY: ClassVar[frozenset[str]]
    """Names of what it is there."""

    def _refuse(self, other: object) -> bool:
        """Comparisons with numbers would be as large as this; with anything else, objects are compared."""
        is_sequence = isinstance(other, (int, float, complex, list, tuple, range))
        if is_sequence or any(hasattr(type(other), name) for name in ("__array__", "__dlpack__", "__array_ufunc__")):
            raise ArgumentError(self._COMPARED)
        return self is other

    def __eq__(self, other: object) -> bool:
        return self._refuse(other)

    def __ne__(self, other: object) -> bool:
        return not self._refuse(other)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise ArgumentError(f"{self._WHAT} on SSD has no truth value; use `x is not None`, or len(x)")

    def _no_comparison(self, _: object) -> NoReturn:
        raise ArgumentError(self._COMPARED)

    def _no_change(self, *_: object) -> NoReturn:
        raise ArgumentError(f"rows of {self._WHAT} on SSD stay; take(rows, out=path) makes a copy of those to keep")

    def _no_arithmetic(self, *_: object) -> NoReturn:
        raise ArgumentError(self._CALCULATED)

    # A checker refuses them itself; it is told that NumPy leaves `x @ a` to the class, and of no names that are not there.
    if TYPE_CHECKING:
        __array_ufunc__ = None
    else:
        __contains__ = __lt__ = __le__ = __gt__ = __ge__ = _no_comparison
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_arithmetic
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = __invert__ = _no_arithmetic
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = _no_arithmetic
        __delitem__ = _no_change
        __divmod__ = __rdivmod__ = __round__ = _no_arithmetic

        def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
            """Products of matrices are those of the class; NumPy's other functions are refused."""
            if function is np.matmul and method == "__call__" and not options:
                left, right = inputs
                return left.__matmul__(right) if isinstance(left, Refusing) else right.__rmatmul__(left)
            if function in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal):
                raise ArgumentError(self._COMPARED)
            raise ArgumentError(f"numpy.{function.__name__}: {self._CALCULATED}")

        def __getattr__(self, name: str) -> NoReturn:
            has = name in self._OF_MEMORY
            advice = f"; {self._IN_MEMORY}.{name} has it, where the {self._NOUN} fits in memory" if has else ""
            advice = f"; use {self._INSTEAD[name]}" if name in self._INSTEAD else advice
            raise AttributeError(f"{self._WHAT} on SSD has no {name!r}{advice}")
