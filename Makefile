# Everything a user, a contributor or CI does starts here: `make help`.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PORT ?= 6379
SERVER ?= $(or $(shell command -v redis-server),$(shell command -v valkey-server),redis-server)
PREFIX ?= /usr/local
DURATION ?= 300
SEED ?=
CHAOS ?=
CONFORMANCE ?=
EXCEPT ?=
BENCH ?=
MACHINES ?= x86_64 aarch64

# redis.conf names the module below this folder.
export CARGO_TARGET_DIR := $(CURDIR)/target
MODULE := $(CARGO_TARGET_DIR)/release/libredislock.so
LOCKCTL := $(CARGO_TARGET_DIR)/release/lockctl
# The one that writes the man pages and completions: LOCKCTL may be for another machine.
RUN_LOCKCTL := $(LOCKCTL)
MAN := $(PREFIX)/share/man/man1
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d

export REDISLOCK_SERVER = $(SERVER)
export REDISLOCK_MODULE = $(MODULE)

.PHONY: help
help: ## Show this list
	@echo "Native locks for Redis and Valkey. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables:"
	@echo "  PORT=$(PORT)             port of 'make run'"
	@echo "  SERVER=$(SERVER)   server of 'make run' and 'make test'"
	@echo "  DURATION=$(DURATION)          seconds of 'make fuzz' and of the 'make chaos' campaigns"
	@echo "  SEED=$(SEED)                what the campaigns do; random if not given"
	@echo "  CHAOS=                more options of 'make chaos' and the other campaigns, or --help"
	@echo "  CONFORMANCE=          options of 'make conformance', such as --only sentinel, or --help"
	@echo "  EXCEPT=               a server that 'make test-servers' leaves out"
	@echo "  BENCH=                more options of the benchmark, such as --only blpop, or --help"
	@echo "  MACHINES=$(MACHINES)  machines of 'make dist'"
	@echo "  PREFIX=$(PREFIX)    where 'make install' puts the module and lockctl"

.PHONY: run
run: check-port deps build ## Start a server with the module in the foreground
	@mkdir -p data
	exec $(SERVER) $(CURDIR)/redis.conf --port $(PORT) \
		--appenddirname aof-$(PORT) --dbfilename dump-$(PORT).rdb

.PHONY: check-port
check-port:
	@scripts/check-port $(PORT)

.PHONY: build
build: build-deps ## Build target/release/libredislock.so
	cargo build --release --locked

# Most tests wait for servers most of the time, so two halves of them run side by side.
SIDE_BY_SIDE = $(MAKE) --no-print-directory --jobs=2 --output-sync=target
tests_in = $(basename $(notdir $(wildcard $(1)/tests/*.rs)))
MODULE_TESTS := $(call tests_in,.) model
OTHER_TESTS := $(sort $(filter-out $(MODULE_TESTS),$(foreach crate, \
	bench chaos client conformance lockctl redlock testing tests/interop,$(call tests_in,$(crate)))))

# The floor's allocator is the server's.
WORKSPACE := --workspace --exclude redis-lock-floor --locked

.PHONY: test
test: deps build ## Run all tests but those of 'make interop', against SERVER
	@$(SERVER) --version
	cargo test $(WORKSPACE) --no-run
	@echo "Two halves run side by side now. Each is shown when it has ended."
	@$(SIDE_BY_SIDE) test-module test-others

.PHONY: test-module test-others
test-module:
	cargo test $(WORKSPACE) $(addprefix --test ,$(MODULE_TESTS))

test-others:
	cargo test $(WORKSPACE) --lib --bins $(addprefix --test ,$(OTHER_TESTS))
	cargo test $(WORKSPACE) --doc
	$(MAKE) --no-print-directory test-tls

.PHONY: test-tls
test-tls: deps build ## Run the client's tests of TLS, with each library that it can use
	@scripts/install-missing tls
	cargo test --locked --package redis-lock-client --features tls-rustls --test tls
	cargo test --locked --package redis-lock-client --features tls-native-tls --test tls
	cargo test --locked --package redis-lock-client --features tls-rustls,tls-native-tls --test tls_twice

.PHONY: test-monitoring
test-monitoring: deps build ## Have a real Prometheus ask SERVER, and test dashboard and alerts
	@scripts/install-missing monitoring
	cargo test --locked --package redis-lock-module --test monitoring -- --ignored

.PHONY: test-servers
test-servers: deps build ## Run the module's own tests against Redis 7.0, Redis 8.2 and Valkey 8.0
	cargo test --locked --package redis-lock-module --tests --no-run
	@servers=$$(scripts/fetch-servers); \
	echo "They run side by side now. Each is shown when it has ended."; \
	$(SIDE_BY_SIDE) $$(for server in $$servers; do \
		[[ $$server = "$(EXCEPT)" ]] || echo "test-on$$server"; \
	done)
	@set -- $$(scripts/fetch-servers); for newer in "$${@:2}"; do \
		echo "=== from $$1 to $$newer"; \
		REDISLOCK_SERVER=$$1 REDISLOCK_NEWER_SERVER=$$newer cargo test --locked \
			--package redis-lock-module --test upgrade || exit; \
	done

test-on/%:
	@echo "=== /$*"
	REDISLOCK_SERVER=/$* cargo test --locked --package redis-lock-module --tests

.PHONY: test-all
test-all: deps build ## Run all tests, those of a server against every one at hand, into COMPATIBILITY.md
	cargo test $(WORKSPACE) --lib --bins
	cargo test $(WORKSPACE) --doc
	@$(MAKE) --no-print-directory test-tls
	cargo test $(WORKSPACE) --test '*' --no-run
	@scripts/compatibility cargo test $(WORKSPACE) --no-fail-fast --test '*' -- --show-output

.PHONY: test-asan
test-asan: deps ## Run the module's own tests against SERVER, with AddressSanitizer in the module
	@scripts/test-asan cargo test --locked --package redis-lock-module --tests

.PHONY: fuzz
fuzz: deps build ## Send random words and bytes for DURATION seconds
	PROPTEST_RNG_SEED=$$RANDOM PROPTEST_CASES=200000 cargo test --lib --release --locked words
	FUZZ_SECONDS=$(DURATION) cargo test --test fuzz --release --locked -- --nocapture

.PHONY: model
model: deps build ## Run the model test at length, against the core and SERVER
	PROPTEST_RNG_SEED=$$RANDOM PROPTEST_CASES=30000 cargo test --locked \
		--package redis-lock-core --lib --release
	PROPTEST_RNG_SEED=$$RANDOM PROPTEST_CASES=1000000 cargo test --locked \
		--package redis-lock-core --lib --release every_deadlock -- --nocapture
	MODEL_SEED=random MODEL_STEPS=100000 cargo test --locked --test model -- --nocapture

.PHONY: copies
copies: deps build ## Compare replicas and loaded files after the model test at length, on every server at hand
	@servers=$$(scripts/fetch-servers --all); \
	for server in $$servers; do \
		echo "=== $$server"; \
		REDISLOCK_SERVER=$$server REDISLOCK_COPIES=$$servers MODEL_STEPS=$${MODEL_STEPS:-100000} \
			cargo test --locked --test model all_copies -- --nocapture || exit; \
	done

.PHONY: explore
explore: build-deps ## Try all that can happen to the core, in every order, for some minutes
	cargo test --locked --package redis-lock-core --lib --release explore:: -- \
		--ignored --nocapture
	cargo test --locked --package redis-lock-core --lib --release --features planted-faults \
		explore::planted -- --nocapture

.PHONY: spec
spec: ## Check the specification: what holds, and what breaks without each of its conditions
	@scripts/install-missing node
	spec/check

.PHONY: miri
miri: build-deps ## Run unit tests of the core in Miri, which sees what its crates do with memory
	@command -v rustup >/dev/null || { echo "This needs rustup: https://rustup.rs" >&2; exit 1; }
	rustup toolchain install nightly --profile minimal --component miri,rust-src
	@# Whole tables, and what is compared with a model at length, take hours there.
	PROPTEST_CASES=2 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 MIRIFLAGS=-Zmiri-disable-isolation \
		cargo +nightly miri test --locked --package redis-lock-core --lib -- --skip explore:: \
		--skip table:: --skip against_a_model:: --skip a_table_that_shrank

.PHONY: mutants
mutants: build-deps ## Change the core in hundreds of small ways: the unit tests must notice
	@command -v cargo-mutants >/dev/null || cargo install --locked cargo-mutants
	@# A change may make a search endless: then let its memory come to an end soon.
	ulimit -v 4194304 && PROPTEST_CASES=32 PROPTEST_DISABLE_FAILURE_PERSISTENCE=1 \
		PROPTEST_MAX_SHRINK_ITERS=0 cargo mutants --package redis-lock-core

RUN_CHAOS = cargo run --locked --package redis-lock-chaos -- --duration $(DURATION) \
	--server $(SERVER) --module $(MODULE) $(if $(SEED),--seed $(SEED))

.PHONY: chaos
chaos: deps build ## Run the fault campaign for DURATION seconds, as SEED says
	$(RUN_CHAOS) $(CHAOS)

.PHONY: chaos-redlock
chaos-redlock: deps build ## Hurt a minority of a Redlock's 3, then 5 servers for DURATION seconds each, as SEED says
	@for servers in 3 5; do $(RUN_CHAOS) --client redlock --locks 6 --servers $$servers $(CHAOS) || exit; done

.PHONY: chaos-client
chaos-client: deps build ## Hurt the Rust client's connections and servers for DURATION seconds each, as SEED and CHAOS say
	@for topology in one sentinel cluster; do for client in library session; do \
		$(RUN_CHAOS) --client $$client --topology $$topology $(CHAOS) || exit; \
	done; done

.PHONY: chaos-failover
chaos-failover: deps build ## Take locks through fail-overs for DURATION seconds, with lock.min-replicas if CHAOS names no mode
	$(RUN_CHAOS) --topology sentinel $(CHAOS)

.PHONY: chaos-packets
chaos-packets: deps build ## As chaos-failover, but the kernel loses packets between nodes, one way or both (Linux)
	@scripts/install-missing network
	cargo build --locked --package redis-lock-chaos
	unshare --map-root-user --net $(RUN_CHAOS) --packets --topology sentinel $(CHAOS)

.PHONY: check-foreign
check-foreign: DURATION := 20
check-foreign: deps build ## Have Porcupine judge campaigns of all kinds or only CHAOS, DURATION seconds each (20), and planted faults
	@scripts/install-missing go
	@history=$$(mktemp); trap "rm -f $$history" EXIT; \
	for mode in $(if $(CHAOS),'$(CHAOS)','' '--topology sentinel' '--topology sentinel --mode grace' \
		'--topology cluster' '--client library' '--client session' '--client redlock'); do \
		$(RUN_CHAOS) $$mode --history $$history && \
		(cd chaos/porcupine && go run . $$history) || exit; \
	done
	@histories=$$(mktemp -d); trap "rm -rf $$histories" EXIT; export REDISLOCK_HISTORIES=$$histories; \
	cargo test --locked --package redis-lock-chaos --test scenes && \
	cd chaos/porcupine && go test -count=1 -v -run Scenes .

.PHONY: planted
planted: deps build ## Show that the fault campaigns find faults that are planted
	cargo test --locked --package redis-lock-chaos --test campaigns \
		-- --ignored --nocapture

.PHONY: growth
growth: deps build ## Show what it costs when holders, waiters and locks become many
	cargo run --locked --release --package redis-lock-bench -- growth $(BENCH)

.PHONY: bench
bench: deps build ## Measure beside SET, BLPOP and Redisson on SERVER, into docs/performance.md
	@scripts/install-missing redisson
	cargo run --locked --release --package redis-lock-bench -- main $(BENCH)

.PHONY: bench-peers
bench-peers: deps build ## Measure beside etcd, ZooKeeper, PostgreSQL and other libraries, into docs/performance.md
	@scripts/install-missing peers
	cargo run --locked --release --package redis-lock-bench -- peers $(BENCH)

.PHONY: bench-instructions
bench-instructions: deps build ## Count instructions beside floors, into docs/bench/instructions.md; BENCH=--check compares
	-@scripts/install-missing valgrind
	cargo build --release --locked --package redis-lock-floor
	cargo run --locked --package redis-lock-bench -- instructions $(BENCH)

.PHONY: interop
interop: DURATION := 20
interop: deps build ## Test with Redisson and with other clients; mixed load for DURATION seconds (20)
	@scripts/install-missing interop
	@for version in $$(cat tests/interop/redisson/versions); do \
		echo "Building with Redisson $$version"; \
		mvn --file tests/interop/redisson --batch-mode --no-transfer-progress --quiet \
			-Dredisson.version=$$version package || exit; \
	done
	INTEROP_SECONDS=$(DURATION) cargo test --locked --package redis-lock-interop -- \
		--ignored --test-threads=1 --show-output
	examples/run-tests

.PHONY: test-packages
test-packages: test-python test-node test-go test-java conformance ## Test the packages for other languages

.PHONY: test-python
test-python: deps build ## Check, test and build the package for Python
	@scripts/install-missing python
	packages/python/test

.PHONY: test-node
test-node: deps build ## Check, test and build the package for Node
	@scripts/install-missing node
	packages/node/test

.PHONY: test-go
test-go: deps build ## Check, test and build the package for Go
	@scripts/install-missing go
	packages/go/test

.PHONY: test-java
test-java: deps build ## Test and build the package for Java
	@scripts/install-missing java
	packages/java/test

.PHONY: conformance
conformance: deps build ## Play the same scenarios with the clients of all languages; all of them: into docs/packages.md
	@for folder in packages/*/conformance; do scripts/install-missing $$(basename $${folder%/*}) || exit; done
	cargo build --locked --package redis-lock-conformance --features tls
	$(CARGO_TARGET_DIR)/debug/redis-lock-conformance $(or $(CONFORMANCE),--all-variants --write docs/packages.md)

.PHONY: check-docs
check-docs: deps build ## Run what the documents show in other languages, and all else that they show
	@scripts/install-missing docs
	scripts/check-docs
	cargo test --locked --package redis-lock-module --test documents --test rights
	cargo test --locked --package lockctl --test documented
	cargo test --locked --package redis-lock-client --test documented
	cargo test --locked --package redis-lock-client --package redis-lock-redlock --doc

.PHONY: lint
lint: build-deps ## Check format, lints, documentation, and that no part has grown beyond its size
	@scripts/size --check
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 \
		|| rustup component add rustfmt clippy
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --document-private-items --locked

.PHONY: size
size: ## Count the lines of each part, beside its budget
	@scripts/size

.PHONY: minimal-versions
minimal-versions: build-deps ## Check the client, Redlock and lockctl with the oldest Rust and crates that they allow
	@command -v rustup >/dev/null || { echo "This needs rustup: https://rustup.rs" >&2; exit 1; }
	scripts/minimal-versions

.PHONY: publishable
publishable: build-deps ## Try to publish the crates that others use, and publish nothing
	cargo publish --dry-run --locked --package redis-lock-client --package redis-lock-redlock \
		--package lockctl

.PHONY: lockctl
lockctl: build-deps ## Build target/release/lockctl
	cargo build --release --locked --package lockctl

.PHONY: install
install: build lockctl ## Copy the module to PREFIX/lib/redis/modules, and lockctl to PREFIX/bin
	@$(MAKE) --no-print-directory install-files
	@echo "Add to redis.conf: loadmodule $(PREFIX)/lib/redis/modules/libredislock.so"

.PHONY: install-files
install-files: ## The same of what 'make build lockctl' has built, without Rust
	install -D -m 755 $(MODULE) $(DESTDIR)$(PREFIX)/lib/redis/modules/libredislock.so
	install -D -m 755 $(LOCKCTL) $(DESTDIR)$(PREFIX)/bin/lockctl
	install -d $(DESTDIR)$(MAN) $(addprefix $(DESTDIR)$(PREFIX)/share/,$(COMPLETIONS))
	$(RUN_LOCKCTL) man $(DESTDIR)$(MAN)
	cd $(DESTDIR)$(PREFIX)/share && $(RUN_LOCKCTL) completions bash >bash-completion/completions/lockctl
	cd $(DESTDIR)$(PREFIX)/share && $(RUN_LOCKCTL) completions zsh >zsh/site-functions/_lockctl
	cd $(DESTDIR)$(PREFIX)/share && $(RUN_LOCKCTL) completions fish >fish/vendor_completions.d/lockctl.fish

.PHONY: dist
dist: build-deps ## Build packages into target/dist, for the MACHINES
	@scripts/install-missing dist
	scripts/dist $(MACHINES)

.PHONY: test-dist
test-dist: ## Install, upgrade and remove the packages of 'make dist' in an empty Debian, and load them
	@scripts/install-missing test-dist
	scripts/test-dist

.PHONY: build-deps
build-deps:
	@scripts/install-missing build

.PHONY: deps
deps: build-deps
	@SERVER=$(SERVER) scripts/install-missing server

.PHONY: clean
clean: ## Remove what was built, and the data of 'make run'
	rm -rf target data
