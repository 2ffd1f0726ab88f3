"""`python -m sandbox_kernel`: the command line."""

from sandbox_kernel.cli import main

if __name__ == "__main__":
    main()
