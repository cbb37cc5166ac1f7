# Two commands are all a fresh machine needs: `make demo` and `make test`. Both make the virtual environment first.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.10 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
ROOMS := components trainers storage processes library reports pipelines deploy cli
# Checked as a room is; nobody imports them.
CHECKED := $(ROOMS) examples
DISTRIBUTION ?= {"distribution_type":"TF","number_of_workers":3,"number_of_parameter_servers":0}

.PHONY: demo test environments test-cluster test-cluster-mpi lint types specs bench bench-ways bench-logs
.PHONY: bench-cluster cluster-named images image-name docs docs-serve screenshots release clean

# The images of replicas and of steps: how the builder is called before a name, how it is asked for one that is there,
# and their prefix.
BUILD = docker build --tag
FIND = docker image inspect
PREFIX = kfp-distributed
ALL_IMAGES = tensorflow horovod pytorch horovod-pytorch steps evaluate
IMAGES = $(ALL_IMAGES)
# The images of the steps hold the library, so their build context is the repository. `evaluate` begins with `tensorflow`.
options-steps = .
options-evaluate = --build-arg BASE=$(call image,tensorflow) .
made-from-steps = $(library)
made-from-evaluate = $(library) $(call tag,tensorflow)
library = $(or $(shell $(or $(PYTHON),false) images/library_hash.py),$(error the library's content hash needs PYTHON))
# The tag is a hash of what the image is made from: what is there need not be built again, and no tag ever changes its
# meaning.
tag = $(shell { (cd images/$1 && LC_ALL=C sha256sum *); printf '%s' '$(made-from-$1)'; } | sha256sum | cut -c 1-12)
image = $(if $(filter $1,$(ALL_IMAGES)),$(PREFIX)/$1:$(call tag,$1),$(error IMAGE is "$1", there are: $(ALL_IMAGES)))

FOLDER ?= kfp-distributed-run

demo: $(STAMP)  ## prepare, train on three processes, evaluate, export; shows where everything is
	@$(BIN)/python -m kfp_distributed.pipelines.demo --distribution '$(DISTRIBUTION)' --folder '$(FOLDER)'

test: $(STAMP) lint types  ## everything that needs no cluster
	$(BIN)/python -m pytest -m 'not cluster' $(FILE_BY_FILE)

environments: $(STAMP)  ## makes the Python environments that Horovod, PyTorch and some tests need, once; says why where they cannot be made
	@for name in horovod pytorch horovod-pytorch; do $(BIN)/python images/environment.py $$name \
		|| echo 'Its tests are skipped.'; done
	@for name in steps kfp-oldest kfp-2.0 mlflow; do $(BIN)/python tests/environments.py $$name || echo 'Its tests are skipped.'; done

cluster-named:
	@test -n "$$KUBECONFIG$$KUBERNETES_SERVICE_HOST" || test -f ~/.kube/config \
		|| { echo 'make: no cluster is named: KUBECONFIG=/path/to/config make ...' >&2; exit 1; }

# Cluster tests mostly wait for pods, so more processes than cores pay. Tests go to a process one by one, the longest
# first: pytest would give each process a tenth of them at the start.
SIDE_BY_SIDE = -n 5 --maxschedchunk 1
# A file's tests go to one process, for they share what its fixtures compute. The longest files start first.
FILE_BY_FILE = -n 2 --dist loadfile --no-loadscope-reorder

test-cluster: cluster-named $(STAMP)  ## what needs a Kubernetes cluster: the one of KUBECONFIG
	$(BIN)/python -m pytest tests/cluster -m 'not alone' $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest tests/cluster/test_alone.py

test-cluster-mpi: cluster-named $(STAMP)  ## of these what concerns MPIJob, in the version that the cluster has: v1 or v2beta1
	$(BIN)/python -m pytest tests/cluster -m mpi $(SIDE_BY_SIDE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	MYPYPATH=$(VENV)/types $(BIN)/mypy $(CHECKED:%=-p kfp_distributed.%)
	MYPYPATH=$(VENV)/types:tools $(BIN)/mypy tools

# Material's advertisement of its successor is no problem of ours.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: $(STAMP)  ## builds the documentation site in build/site; broken links and references fail
	$(MKDOCS) build --strict

screenshots: $(STAMP)  ## makes the screenshots of the reports in docs/images by real runs; needs chromium
	$(BIN)/python tests/browser/screenshots.py docs/images

docs-serve: $(STAMP)  ## serves the documentation on http://127.0.0.1:8000 and rebuilds it after each change
	$(MKDOCS) serve

release: $(STAMP)  ## builds the release VERSION=x.y.z in dist/
	@$(BIN)/python tools/release.py '$(VERSION)' dist

specs: $(STAMP)  ## writes component_specs/ anew
	$(BIN)/kfp-distributed compile component_specs

bench: $(STAMP) environments  ## measures, prints and writes benchmarks/README.md
	$(BIN)/python benchmarks/run.py

bench-ways: $(STAMP) environments  ## measures each way to spread a training, prints and writes benchmarks/ways.md
	$(BIN)/python benchmarks/ways.py

bench-logs: $(STAMP)  ## measures the logs of 3 and of 300 replicas, prints and writes benchmarks/logs.md
	$(BIN)/python benchmarks/logs.py

STEPS_IMAGE = $(call image,steps)

bench-cluster: cluster-named $(STAMP)  ## measures on the cluster of KUBECONFIG with IMAGE, prints and writes benchmarks/cluster.md
	PYTHONPATH=tests $(BIN)/python benchmarks/cluster.py --image '$(IMAGE)' --steps-image '$(STEPS_IMAGE)'

images: $(IMAGES:%=image-%)  ## builds the images that are not there yet

.PHONY: $(ALL_IMAGES:%=image-%)
$(ALL_IMAGES:%=image-%): image-%:
	@$(FIND) $(call image,$*) >/dev/null 2>&1 \
		|| $(BUILD) $(call image,$*) --file images/$*/Containerfile $(or $(options-$*),images/$*)
	@echo $(call image,$*)

image-evaluate: image-tensorflow

image-name:  ## prints the full name of IMAGE=tensorflow
	@echo $(call image,$(IMAGE))

clean:
	rm -rf $(VENV) build dist .cache .mypy_cache .pytest_cache .ruff_cache

# tf_keras asks for the package named tensorflow; tensorflow-cpu is the same code in a fifth of the size.
$(STAMP): pyproject.toml Makefile
	@test -n '$(PYTHON)' || { echo 'make: Python 3.10, 3.11 or 3.12 is needed; name one: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo 'Installing into $(VENV) with $(PYTHON) (once; a download of some 600 MB, 2.3 GB on the disk, a minute or two)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,dev,docs]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps tf_keras==2.21.0
	@mkdir -p $(VENV)/types/kfp_distributed && for room in $(CHECKED); do ln -sfn "$$PWD/$$room" $(VENV)/types/kfp_distributed/$$room; done
	@touch $@
