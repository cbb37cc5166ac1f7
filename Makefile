# A fresh machine needs `make demo` and `make test` alone. Both create the virtual environment first.
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PACKAGES := components trainers storage cluster_api processes library reports pipelines deploy cli
# Folders whose types are checked.
TYPED := $(PACKAGES) examples
DISTRIBUTION ?= {"distribution_type":"TF","number_of_workers":3,"number_of_parameter_servers":0}

# With it, each of the many processes that tests start would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test environments debian-packages test-cluster test-cluster-mpi test-gpu lint types specs bench bench-ways bench-logs bench-overview bench-tables bench-public-tables bench-large bench-checkpoints bench-fine-tuning bench-scale bench-feeding bench-export bench-tune
.PHONY: bench-cluster bench-generations soak cluster-named images image-name docs docs-serve screenshots release clean

# BUILD is the command that builds an image, without the name at its end. FIND succeeds if an image of the name that is
# appended exists. PREFIX is the first part of all names.
BUILD = docker build --tag
FIND = docker image inspect
PREFIX = kfp-distributed
ALL_IMAGES = tensorflow horovod pytorch horovod-pytorch steps evaluate language-model
IMAGES = $(filter-out language-model,$(ALL_IMAGES))
# The images of the steps contain the library, so their build context is the repository. The base of `evaluate` is
# `tensorflow`.
# DRIVERS has requirements of pip that the images steps and evaluate get besides, such as gcsfs for gs:// sources, or
# torch for models of PyTorch.
DRIVERS =
options-steps = $(if $(DRIVERS),--build-arg 'DRIVERS=$(DRIVERS)') .
options-evaluate = $(if $(DRIVERS),--build-arg 'DRIVERS=$(DRIVERS)') --build-arg BASE=$(call image,tensorflow) .
# PyTorch for language models: cuda for GPUs, or cpu. Always passed, because buildah does not know a stage by the default
# of an ARG.
PYTORCH ?= cuda
options-language-model = --build-arg PYTORCH=$(PYTORCH) images/language-model
made-from-language-model = $(PYTORCH)
made-from-steps = $(library)$(DRIVERS:%= %)
made-from-evaluate = $(library) $(call tag,tensorflow)$(DRIVERS:%= %)
library = $(or $(shell $(or $(PYTHON),false) images/library_hash.py),$(error the hash of the library requires Python: make PYTHON=/path/to/python3.11))
# The tag is a hash of the files of the image. An image that exists need not be built again, and a tag never names
# another image.
tag = $(shell { (cd images/$1 && LC_ALL=C sha256sum *); printf '%s' '$(made-from-$1)'; } | sha256sum | cut -c 1-12)
image = $(if $(filter $1,$(ALL_IMAGES)),$(PREFIX)/$1:$(call tag,$1),$(error IMAGE is "$1"; allowed: $(ALL_IMAGES)))

FOLDER ?= kfp-distributed-run

demo: $(STAMP)  ## prepares data, trains with three processes, evaluates and exports; prints the paths of the results
	@$(BIN)/python -m kfp_distributed.pipelines.demo --distribution '$(DISTRIBUTION)' --folder '$(FOLDER)'

# .ci/run sets it to a program that runs failed tests once more.
PYTEST ?= $(BIN)/python -m pytest

test: $(STAMP) lint types  ## runs lint, types and all tests that need no cluster
	$(PYTEST) -m 'not cluster' $(FILE_BY_FILE)

check: $(STAMP) lint types  ## runs lint, types and all tests that take no seconds, for before each commit
	$(PYTEST) -m 'not cluster and not takes' -n 2 --dist loadfile

# Debian's PyTorch has half a gigabyte, a fourteenth of pip's. It computes many times slower without OpenBLAS. Horovod is
# compiled against the headers. Tests open the reports and the documentation in chromium.
DEBIAN_PACKAGES = python3-torch python3-numpy python3-venv libopenblas0-pthread libtorch-dev pybind11-dev \
	libprotobuf-dev chromium openssl
INSTALL = apt-get -qq update && apt-get -qq install --no-install-recommends $(DEBIAN_PACKAGES)

debian-packages:
	@dpkg --status $(DEBIAN_PACKAGES) >/dev/null 2>&1 && exit; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo 'Installing $(DEBIAN_PACKAGES)'; \
		for attempt in 1 2; do ($(INSTALL)) >/dev/null && exit; done; \
	fi; \
	echo 'Packages of Debian are missing, so some tests are skipped. Run as root: $(INSTALL)'

environments: $(STAMP) debian-packages  ## creates the Python environments of Horovod, PyTorch and some tests, once; prints why one cannot be created
	@for name in horovod pytorch horovod-pytorch; do $(BIN)/python images/environment.py $$name \
		|| echo 'Its tests are skipped.'; done
	@for name in steps kfp-oldest kfp-2.0 mlflow torch2 python3.13; do $(BIN)/python tests/environments.py $$name || echo 'Its tests are skipped.'; done

cluster-named:
	@test -n "$$KUBECONFIG$$KUBERNETES_SERVICE_HOST" || test -f ~/.kube/config \
		|| { echo 'make: no cluster is configured; set KUBECONFIG: make TARGET KUBECONFIG=/path/to/config' >&2; exit 1; }

# Cluster tests mostly wait for pods, so more processes than cores save time. Tests are assigned one by one, the longest
# first. By default pytest-xdist assigns a tenth of them to a process at once.
IN_PARALLEL = -n 5 --maxschedchunk 1
# The tests of a file run in one process, because they share fixtures. The longest files start first. Many tests wait for
# what they have started, so that four processes finish earlier than three or two on two cores.
FILE_BY_FILE = -n 4 --dist loadfile --no-loadscope-reorder

test-cluster: cluster-named $(STAMP)  ## runs the tests that need a Kubernetes cluster, on that of KUBECONFIG
	$(PYTEST) tests/cluster -m 'not alone' $(IN_PARALLEL)
	$(PYTEST) tests/cluster/test_alone.py

test-cluster-mpi: cluster-named $(STAMP)  ## runs the cluster tests of MPIJob, in the version that the cluster serves: v1 or v2beta1
	$(PYTEST) tests/cluster -m mpi $(IN_PARALLEL)

# A Python with CUDA is rarely that of the virtual environment. It needs no installation of this project.
GPU_PYTHON ?= python3

test-gpu:  ## runs the tests that need a GPU with CUDA, with GPU_PYTHON=python3; without one it says so
	@$(GPU_PYTHON) tests/gpu/run.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	MYPYPATH=$(VENV)/types $(BIN)/mypy $(TYPED:%=-p kfp_distributed.%)
	MYPYPATH=$(VENV)/types:tools $(BIN)/mypy tools

# Without the variable, Material prints an advertisement for its successor.
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: $(STAMP)  ## builds the documentation site in build/site; broken links and references fail
	$(MKDOCS) build --strict

screenshots: $(STAMP)  ## creates the screenshots of the reports in docs/images by real runs; needs chromium
	$(BIN)/python tests/browser/screenshots.py docs/images

docs-serve: $(STAMP)  ## serves the documentation on http://127.0.0.1:8000 and rebuilds it after each change
	$(MKDOCS) serve

release: $(STAMP)  ## builds the release VERSION=x.y.z in dist/
	@$(BIN)/python tools/release.py '$(VERSION)' dist

specs: $(STAMP)  ## compiles the components and pipelines to component_specs/
	$(BIN)/kfp-distributed compile component_specs

bench: $(STAMP) environments  ## measures the train step; prints the results and writes benchmarks/README.md
	$(BIN)/python benchmarks/train_step.py

bench-ways: $(STAMP) environments  ## measures each strategy; prints the results and writes benchmarks/ways.md
	$(BIN)/python benchmarks/ways.py

bench-overview: $(STAMP)  ## measures how fast prepare_data draws its overview; prints the results and writes benchmarks/overview.md
	$(BIN)/python benchmarks/overview.py

bench-tables: $(STAMP)  ## measures prepare_data with tables of 2 million rows; prints the results and writes benchmarks/tables.md
	$(BIN)/python benchmarks/tables.py

bench-public-tables: $(STAMP)  ## compares the built-in trainer with scikit-learn on public tables; prints the results and writes benchmarks/public_tables.md
	$(BIN)/python benchmarks/public_tables.py

# FOLDER needs three times SIZE.
bench-large: $(STAMP)  ## measures prepare_data with sources of SIZE=10 GB in FOLDER; prints the results and writes benchmarks/large.md
	$(BIN)/python benchmarks/large.py --size $(or $(SIZE),10) $(if $(filter-out file,$(origin FOLDER)),--folder '$(FOLDER)')

bench-checkpoints: $(STAMP)  ## measures the pause of a checkpoint of 2 GB; prints the results and writes benchmarks/checkpoint_pause.md
	$(BIN)/python benchmarks/checkpoint_pause.py

bench-fine-tuning: $(STAMP)  ## compares the trainer language_model with a plain script of trl; prints the results and writes benchmarks/fine_tuning.md
	$(BIN)/python benchmarks/fine_tuning.py

bench-scale: $(STAMP)  ## computes a fine-tuning on 64 GPUs from rates measured with KFP_DISTRIBUTED_LANGUAGE_MODEL_PYTHON; prints the results and writes benchmarks/scale.md
	$(BIN)/python benchmarks/scale.py

bench-feeding: $(STAMP) environments  ## measures how fast trainers read rows; prints the results and writes benchmarks/feeding.md
	$(BIN)/python benchmarks/feeding.py

# The object store is that of AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a local one.
bench-export: $(STAMP)  ## measures uploads and copies of models beside s5cmd and rclone; prints the results and writes benchmarks/export.md
	$(BIN)/python benchmarks/export.py

bench-tune: $(STAMP)  ## measures searches beside Optuna's own loop; prints the results and writes benchmarks/tune.md
	$(BIN)/python benchmarks/tune.py

bench-logs: $(STAMP)  ## measures the logs of up to 1,000 replicas; prints the results and writes benchmarks/logs.md
	$(BIN)/python benchmarks/logs.py

STEPS_IMAGE = $(call image,steps)

bench-cluster: cluster-named $(STAMP)  ## measures on the cluster of KUBECONFIG with IMAGE; prints the results and writes benchmarks/cluster.md
	PYTHONPATH=tests $(BIN)/python benchmarks/cluster.py --image '$(IMAGE)' --steps-image '$(STEPS_IMAGE)'

bench-generations: cluster-named $(STAMP)  ## compares both operators and the Kubeflow SDK on the cluster of KUBECONFIG; writes benchmarks/generations.md
	PYTHONPATH=tests $(BIN)/python benchmarks/generations.py --tensorflow '$(call image,tensorflow)' \
	    --pytorch '$(call image,pytorch)' --horovod '$(call image,horovod)'

SEED ?= 1
TRAININGS ?= 100
FIRST ?= 1
# The page is written only by a soak from the first training.
SOAK_PAGE ?= $(if $(filter 1,$(FIRST)),--page benchmarks/soak.md)
# OPERATORS limits the choice of what runs the trainings: training-operator, trainer. Default: what the cluster serves.
OPERATORS ?=
SOAK = PYTHONPATH=tests $(BIN)/python -m cluster.soak --image '$(call image,tensorflow)' --mpi-image '$(call image,horovod)'

soak: cluster-named $(STAMP)  ## runs TRAININGS=100 with random faults of SEED on the cluster of KUBECONFIG; writes benchmarks/soak.md
	$(SOAK) --seed $(SEED) --trainings $(TRAININGS) --first $(FIRST) $(SOAK_PAGE) $(if $(OPERATORS),--operators $(OPERATORS))

images: $(IMAGES:%=image-%)  ## builds the images that do not exist

.PHONY: $(ALL_IMAGES:%=image-%)
$(ALL_IMAGES:%=image-%): image-%:
	@$(FIND) $(call image,$*) >/dev/null 2>&1 \
		|| $(BUILD) $(call image,$*) --file images/$*/Containerfile $(or $(options-$*),images/$*)
	@echo $(call image,$*)

image-evaluate: image-tensorflow

image-name:  ## prints the full name of an image: make image-name IMAGE=tensorflow
	@echo $(call image,$(IMAGE))

clean:
	rm -rf $(VENV) build dist .cache .mypy_cache .pytest_cache .ruff_cache

# tf_keras requires the package `tensorflow`. tensorflow-cpu is the same code in a fifth of the size, so tf_keras is
# installed without its dependencies.
$(STAMP): pyproject.toml Makefile
	@test -n '$(PYTHON)' || { echo 'make: Python 3.11, 3.12 or 3.13 is required; set PYTHON: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	@echo 'Installing into $(VENV) with $(PYTHON) (once; a download of some 600 MB, 2.7 GB on the disk, a minute or two)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local,dev,docs]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps tf_keras==2.21.0
	@mkdir -p $(VENV)/types/kfp_distributed && for package in $(TYPED); do ln -sfn "$$PWD/$$package" $(VENV)/types/kfp_distributed/$$package; done
	@touch $@
