# `make demo` and `make test` work by themselves on a Debian machine with python3, as root.
#
# RELEASE=bookworm takes that Debian release as the image's base and asks no registry.

RELEASE ?=
TESTS ?=
NOTEBOOK := notebooks/quickstart.ipynb
EXECUTED := out/quickstart.ipynb

.PHONY: demo test lint image engine bench clean

demo: image
	@test -e $(NOTEBOOK) || { echo "\`$(NOTEBOOK)\` is missing"; exit 1; }
	@mkdir -p out
	.venv/bin/papermill --kernel aisandbox-docker --no-progress-bar $(NOTEBOOK) $(EXECUTED)
	@echo "executed notebook: $(CURDIR)/$(EXECUTED)"
	@.venv/bin/jupyter nbconvert --log-level ERROR --to markdown --stdout $(EXECUTED) | \
	sed -n 's/^ *\(verdict: .*\)/\1/p'

test: image
	.venv/bin/python -m pytest $(TESTS)

lint: .venv/installed
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

image: engine
	@base=$$(scripts/base.sh $(RELEASE)) && wheels=$$(scripts/wheels.sh "$$base") && \
	.venv/bin/sandbox-kernel image build --base "$$base" --wheels "$$wheels" --if-changed

engine: .venv/installed
	@scripts/engine.sh

bench: image
	.venv/bin/python -m bench

clean:
	rm -rf .venv out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml scripts/venv.sh
	scripts/venv.sh
	@touch $@
