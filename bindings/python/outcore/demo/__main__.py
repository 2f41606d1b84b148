"""`python -m outcore.demo`: the demo with its default options; `outcore demo` has them all."""

from . import run_demo

if __name__ == "__main__":
    run_demo()
