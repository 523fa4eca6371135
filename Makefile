# Every target does its own set-up: it needs a JDK >= 25, Maven and Python >= 3.11, and says so when one is missing.
# What is installed goes to $KV_MESSENGER_CACHE (default ~/.cache/kv-messenger), outside the tree, and is reused.

SHELL := /bin/bash
.DEFAULT_GOAL := help

ENVIRONMENT := examples/setup/environment
MVN := examples/setup/with-jdk mvn -B -q -Dstyle.color=never
JAR := python/kv_connector/_jar/kv-messenger.jar
WHEEL_MARK := python/dist/.wheel
JAVA_SOURCES := $(shell find kvlayout spec-decode engine-hooks connector-java -path '*/src/main/*' -type f) \
    $(shell find . -name pom.xml -not -path './build/*') LICENSE NOTICE $(wildcard licenses/*)
PYTHON_SOURCES := $(shell find python \( -name '*.py' -o -name '*.pth' \) -not -path '*/build/*' -not -path '*/tests/*' 2>/dev/null) \
    python/pyproject.toml python/README.md
ARGS ?=

.PHONY: help help-all demo demo-sglang dashboard wheel check test format clean \
    java wheels library dashboards pictures \
    sim loop fuzz soak lost-paths pull-stress sglang-pull-traffic sglang-pull-ranks sglang-traffic sglang-shapes sglang-hosts role-switches stores structured-output weight-faults weight-pairs weight-shards weights-trl sglang-weights \
    versions sglang-release emulated \
    gpu-check gpu-check-rehearsed gpu-check-sglang uncomputed uncomputed-captures uncomputed-sglang test-rdma \
    kvperf race race-engines race-first-token race-pulls race-weights beside-nixl sglang-pull-times shared-link multi-path price-trio write-cost planner-cost plan-counts share-cost

##@ Every day

help: ## what a day needs; make help-all lists every target
	@awk -F ':.*## ' '/^##@/ { if (++headings > 1) exit } /^[a-z-]+:.*## / { print $$1 "\t" $$2 }' $(MAKEFILE_LIST) | expand -t 14

help-all: ## all targets, by heading
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { print "  " $$1 "\t" $$2 }' $(MAKEFILE_LIST) | expand -t 24

demo: wheel ## one prefiller, one decoder and a router on this machine: tokens compared with a single vLLM
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- examples/vllm-1p1d/demo.py $(ARGS)

demo-sglang: wheel ## the same with SGLang: a prefiller, a decoder and SGLang's load balancer
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- examples/sglang-1p1d/sglang_demo.py $(ARGS)

dashboard: wheel ## the demo's pair under load, a Prometheus, and pictures of the dashboards with its data: make dashboard [ARGS="--keep"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- examples/vllm-1p1d/dashboard_demo.py \
	    --picture docs/pictures/dashboard.png $(ARGS)

wheel: $(WHEEL_MARK) ## the wheel, jar inside, into python/dist

$(WHEEL_MARK): $(JAR) $(PYTHON_SOURCES)
	@echo "building the wheel"
	@rm -rf python/dist python/build && mkdir -p python/dist
	@"$$($(ENVIRONMENT) make tools)" -m pip --disable-pip-version-check -q wheel --no-deps --no-build-isolation \
	    -w python/dist ./python
	@ls "$(CURDIR)"/python/dist/*.whl > $@ && cat $@

check: ## the quick part of the tests, no engine, about 13 minutes on two cores
	@$(ENVIRONMENT) run tools -- .ci/suites.py quick

test: ## all tests, Java, Python and real engines
	@$(ENVIRONMENT) run tools -- .ci/suites.py all

format: ## formats Java and Python
	@$(MVN) spotless:apply
	@$(ENVIRONMENT) run tools -- -m ruff format python examples dashboards e2e-tests .ci
	@$(ENVIRONMENT) run tools -- -m ruff check --fix python examples dashboards e2e-tests .ci

clean: ## removes what was built in the tree (not the cache outside it)
	@$(MVN) clean
	@rm -rf build python/dist python/build $(JAR)

##@ What is made

java: $(JAR) ## the jar, into python/kv_connector/_jar

$(JAR): $(JAVA_SOURCES)
	@echo "building $(JAR)"
	@$(MVN) -DskipTests package
	@test -s $@ || { echo "maven did not leave a jar at $@" >&2; exit 1; }
	@touch $@

wheels: wheel ## the wheels of all machines that it was tried on, beside the one of this machine
	@for machine in x86_64 aarch64; do KV_MESSENGER_WHEEL_MACHINE=$$machine "$$($(ENVIRONMENT) make tools)" -m pip \
	    --disable-pip-version-check -q wheel --no-deps --no-build-isolation -w python/dist ./python || exit 1; done
	@ls "$(CURDIR)"/python/dist/*.whl

library: ## transfer as a library: jars with sources and javadoc, and its example compiled and run over shm and tcp
	@$(MVN) -Plibrary -pl connector-java/transfer -am -DskipTests package
	@jars="$$(ls connector-java/{foreign,transfer}/target/*-[0-9]*[0-9].jar | paste -sd:)"; \
	    for transport in shm tcp; do \
	        examples/setup/with-jdk bash -c 'exec "$$JAVA_HOME/bin/java" --enable-native-access=ALL-UNNAMED -cp "$$@"' java \
	            "$$jars" examples/transfer-java/TwoEngines.java $$transport || exit 1; \
	    done
	@ls connector-java/{foreign,transfer}/target/*-[0-9]*.jar

dashboards: ## writes the Grafana dashboards and the alert rules anew
	@$(ENVIRONMENT) run tools -- dashboards/generate.py

pictures: demo ## runs the demo and draws its longest transfer into docs/pictures
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m kv_connector timeline --svg docs/pictures/transfer.svg \
	    "$$(ls -d build/demo/* | tail -1)"/{prefiller,decoder}.log

##@ Faults, traffic and random stories, at length

sim: ## the protocol under seeded faults: make sim [SEEDS=1..1000] [ARGS="--beside pulls_and_ports"]; replays one: make sim SEED=n
	@jep="$$(examples/setup/find-jep || true)"; $(MVN) -Psimulate -pl connector-java/connector -am -DskipTests \
	    process-test-classes "-Dkvmessenger.jep=$$jep" \
	    "-Dsim.args=$(if $(SEED),--seed $(SEED),$(if $(SEEDS),--seeds $(SEEDS))) $(ARGS)"

loop: $(JAR) ## vLLM's own scheduler and the real messengers: make loop [REQUESTS=10000] [KIND=all] [SEED=1] [RELEASE=0.32.0]
	@$(ENVIRONMENT) run engine -- python/tests/engine_loop --requests $(or $(REQUESTS),10000) \
	    --kind $(or $(KIND),all) --seed $(or $(SEED),1) --release $(or $(RELEASE),0.32.0)

fuzz: ## hostile control links, at length: make fuzz [FRAMES=100000] [LINKS=10000] [SEED=1]
	@$(MVN) -pl connector-java/connector -am test -Dsurefire.failIfNoSpecifiedTests=false \
	    -Dtest=ControlFuzzTest,HostileLinkTest -Dsurefire.useFile=false -Dsurefire.printSummary=true \
	    -Dfuzz.frames=$(or $(FRAMES),100000) -Dfuzz.links=$(or $(LINKS),10000) -Dfuzz.seed=$(or $(SEED),1)

soak: $(JAR) ## load and soak of one prefiller and three decoders: make soak [ARGS="--minutes 20"]
	@$(ENVIRONMENT) run tools -- e2e-tests/soak/soak.py $(ARGS)

lost-paths: ## data sockets broken under load, at length: make lost-paths [SECONDS=60]
	@$(MVN) -pl connector-java/testkit -am test -Dsurefire.failIfNoSpecifiedTests=false \
	    -Dtest='TcpLostPathTest#shouldLeaveOther*,TcpTwoNetworksLostPathTest#shouldLeaveOther*' -Dsurefire.useFile=false \
	    -Dkvmessenger.paths.seconds=$(or $(SECONDS),60)

pull-stress: wheel ## engines of vLLM stop, die and get other weights in each state of their pulls, beside conversations: make pull-stress [ARGS="--rounds 60 --seed 2"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/pull_stress.py $(ARGS)

sglang-pull-traffic: wheel ## random prompts on SGLang whose beginnings come from right, wrong, stale and dead engines: make sglang-pull-traffic [ARGS="--requests 1000 --seed 1"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- e2e-tests/sglang_pair/pull_traffic.py $(ARGS)

sglang-pull-ranks: wheel ## pulls between SGLang engines of one and two tensor-parallel ranks, with a source that stands still and one that is killed
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest e2e-tests/sglang_pair/test_sglang_pull_ranks.py \
	    -q -p no:cacheprovider --all-pulls $(ARGS)

sglang-traffic: wheel ## random prompts through pairs of SGLang servers of all page sizes, and with decoders killed: make sglang-traffic [ARGS="--requests 300"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- e2e-tests/sglang_pair/random_traffic.py $(ARGS)

sglang-shapes: wheel ## prompts between SGLang engines of all shapes, over every family of pools, all bytes compared: make sglang-shapes [SHAPES=all]
	@KV_MESSENGER_SHAPES=$(or $(SHAPES),all) $(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest \
	    python/tests/sglang/test_shape_matrix.py -q -p no:cacheprovider \
	    -o "pythonpath=. tests $(CURDIR)/examples/sglang-1p1d/cpu_kernels" $(ARGS)

sglang-hosts: wheel ## SGLang's prefiller and decoder on two hosts (network namespaces), which find their own addresses
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest e2e-tests/sglang_pair/test_two_hosts.py \
	    -p no:cacheprovider -s $(ARGS)

role-switches: wheel ## two SGLang servers change roles with each other under traffic: make role-switches [COUNT=50]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest e2e-tests/sglang_pair/test_role_switches.py \
	    -p no:cacheprovider -s --role-switches $(or $(COUNT),50) $(ARGS)

stores: wheel ## beside Mooncake Store in every order, on one rank and two, with a store that stops and dies; 15 minutes
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/test_stores.py -p no:cacheprovider \
	    -s --all-stores $(ARGS)

structured-output: wheel ## JSON by vLLM's names for it, through the proxy that hands first tokens on
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/test_structured_output.py \
	    -p no:cacheprovider -s --all-formats $(ARGS)

weight-faults: wheel ## weights sent while senders and servers stop and die in each state, into vLLM 0.33, beside adapters and preemptions; 15 minutes
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/test_weight_faults.py \
	    e2e-tests/test_weights_beside_adapters.py e2e-tests/test_weights_preempted.py -p no:cacheprovider -s --all-weights $(ARGS)

weight-pairs: wheel ## a prefiller and its decoder get other weights while clients ask, together and one after the other
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/test_weight_pairs.py -p no:cacheprovider \
	    -s --all-weights $(ARGS)

weight-shards: wheel ## two FSDP2 trainer ranks send their own rows into two vLLM servers, and die between their steps
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/test_weight_shards.py -p no:cacheprovider \
	    -s --all-weights $(ARGS)

weights-trl: wheel ## TRL's own trainer on CPU sends its weights into real vLLM servers, and is killed: make weights-trl [ARGS="-k tied"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/trl_trainer -p no:cacheprovider -s $(ARGS)

sglang-weights: wheel ## weights sent into SGLang servers of one rank and two, by senders that stop and die in each state, and by FSDP2 trainer ranks
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest e2e-tests/sglang_pair/test_sglang_weight_faults.py \
	    e2e-tests/sglang_pair/test_sglang_weight_shards.py -p no:cacheprovider -s --all-weights $(ARGS)

##@ Other releases and machines

versions: $(JAR) ## pages between this build and an earlier one, both ways: make versions [ARGS="--earlier REVISION"]
	@$(ENVIRONMENT) run tools -- e2e-tests/upgrade/two_builds.py $(ARGS)

sglang-release: wheel ## SGLang's tests and a pair of its servers, with another release than the pinned one: make sglang-release [RELEASE=newest]
	@in_release() { $(ENVIRONMENT) --release $(or $(RELEASE),newest) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest \
	    -q -p no:cacheprovider "$$@"; }; failed=0; \
	    in_release python/tests/sglang -o "pythonpath=. tests $(CURDIR)/examples/sglang-1p1d/cpu_kernels" || failed=1; \
	    in_release e2e-tests/sglang_pair/test_sglang.py -k "single_sglang or 8_at_a_time or aborted" || failed=1; \
	    in_release e2e-tests/sglang_pair/test_drafts.py || failed=1; exit $$failed

emulated: $(JAR) ## pages to, from and between emulated aarch64 processes; a few minutes
	@$(ENVIRONMENT) run tools -- e2e-tests/emulated/aarch64.py

##@ Without the hardware

GPU_CHECK := build/gpu-check/gpu-check.sh

gpu-check: wheel ## packs what checks a GPU into one file, build/gpu-check/gpu-check.sh, and runs it here: make gpu-check [ARGS=--need-gpu]
	@PYTHONPATH=e2e-tests examples/setup/with-jdk "$$($(ENVIRONMENT) make tools)" -m gpu_check.pack "$$(cat $(WHEEL_MARK))" $(GPU_CHECK) \
	    "$$(examples/setup/find-cuda-stand-in || true)" "$$($(ENVIRONMENT) make engine)"
	@PYTHON="$$($(ENVIRONMENT) make engine)" $(GPU_CHECK) $(ARGS)

REHEARSED := build/gpu-check/gpu-check-rehearsed.sh

gpu-check-rehearsed: wheel ## the same for the Python that is here, on a CUDA that computes by the host: all but a clock, a context's memory, and vLLM's arithmetic
	@PYTHONPATH=e2e-tests examples/setup/with-jdk "$$($(ENVIRONMENT) make tools)" -m gpu_check.pack "$$(cat $(WHEEL_MARK))" $(REHEARSED) \
	    "$$(examples/setup/find-cuda-stand-in || true)" "$$($(ENVIRONMENT) make engine)" vllm \
	    "$$("$$($(ENVIRONMENT) make engine)" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
	@UNCOMPUTED_PYTHON="$$($(ENVIRONMENT) make engine)" PYTHON=$(CURDIR)/e2e-tests/uncomputed/python $(REHEARSED) --lanes 1 --longer 10 $(ARGS)

gpu-check-sglang: wheel ## packs SGLang's checks for a GPU into build/gpu-check/gpu-check-sglang.sh
	@PYTHONPATH=e2e-tests examples/setup/with-jdk "$$($(ENVIRONMENT) make tools)" -m gpu_check.pack "$$(cat $(WHEEL_MARK))" \
	    $(dir $(GPU_CHECK))gpu-check-sglang.sh "" "$$($(ENVIRONMENT) make sglang)" sglang

uncomputed: wheel ## vLLM on a CUDA that computes nothing: all pairs, also those that make test leaves out
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/uncomputed -q -p no:cacheprovider --all-pairs $(ARGS)

GUESTS ?= 1000

uncomputed-captures: wheel ## captures of torch's beside peers that connect, copy and go, each within one: make uncomputed-captures [GUESTS=1000]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- -m pytest e2e-tests/uncomputed/test_captures.py -q -p no:cacheprovider \
		--guests $(GUESTS) $(ARGS)

uncomputed-sglang: wheel ## the same with SGLang
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- -m pytest e2e-tests/uncomputed/test_sglang.py \
		e2e-tests/uncomputed/test_sglang_sleep.py e2e-tests/uncomputed/test_sglang_host_cache.py e2e-tests/uncomputed/test_staged_shm.py \
		-q -p no:cacheprovider --all-pairs $(ARGS)

test-rdma: ## verbs on soft-RoCE devices, in a user-mode Linux that is built first: make test-rdma [TESTS=regex]
	@examples/setup/find-rdma-bed >/dev/null
	@$(MVN) -Prdma -pl connector-java/$(if $(TESTS),testkit,connector) -am -DskipTests process-test-classes \
	    -Dkvmessenger.cuda-stand-in="$$(examples/setup/find-cuda-stand-in)" \
	    -Drdma.bed=$(CURDIR)/examples/setup/rdma-bed '-Drdma.args=$(TESTS)'

##@ Benchmarks; they want a quiet machine

kvperf: ## the two-process benchmark of the transfer engine: make kvperf ARGS="--help"
	@connector-java/benchmarks/kvperf $(ARGS)

race: ## kvperf beside NIXL and Mooncake on the same paths, in turns; wants a quiet machine: make race [ARGS="--turns 30"]
	@fabric="$$(examples/setup/find-libfabric)" && LD_LIBRARY_PATH="$$fabric/lib" \
	    $(ENVIRONMENT) run race -- e2e-tests/race/race.py $(ARGS)

race-engines: wheel ## vLLM pairs under our connector, NIXL's and Mooncake's, in turns; needs root: make race-engines [ARGS="--link"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/race/engine_race.py $(ARGS)

race-first-token: wheel ## the first two tokens, where the prefiller's is handed on and where not: make race-first-token [ARGS="--rounds 10"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/race/first_token_race.py $(ARGS)

race-pulls: wheel ## turns of conversations that are pulled, recomputed, stored, read by NIXL: make race-pulls [ARGS="--rounds 6"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/race/pull_race.py $(ARGS)

race-weights: wheel ## a server's tokens while a trainer sends it weights: ours, a broadcast, a reload; needs root: make race-weights [ARGS="--ranks 2"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/race/weight_race.py $(ARGS)

beside-nixl: wheel ## how long SGLang's decoder waits for KV, beside SGLang's own NIXL backend: make beside-nixl [ARGS="--prompts 200"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- e2e-tests/sglang_pair/beside_nixl.py $(ARGS)

sglang-pull-times: wheel ## first tokens of SGLang, computed and with their beginning pulled: make sglang-pull-times [ARGS="--rounds 30"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run sglang -- e2e-tests/sglang_pair/pull_times.py $(ARGS)

shared-link: ## hand-overs beside weights on one link of 1 Gb/s, with and without traffic classes, and NIXL's and Mooncake's; needs root: make shared-link [ARGS="--rounds 200"]
	@fabric="$$(examples/setup/find-libfabric)" && LD_LIBRARY_PATH="$$fabric/lib" \
	    $(ENVIRONMENT) run race -- e2e-tests/paths/shared_link.py $(ARGS)

multi-path: ## several networks between two hosts, of unlike speeds, slowing and lost; needs root: make multi-path [ARGS="--congestion cubic"]
	@$(ENVIRONMENT) run tools -- e2e-tests/paths/multi_path.py $(ARGS)

price-trio: wheel ## prices beside measured pulls from two engines, one of them behind a slow link (root): make price-trio [ARGS="--rounds 40 --mbit 100 --decide"]
	@$(ENVIRONMENT) --wheel "$$(cat $(WHEEL_MARK))" run engine -- e2e-tests/race/price_trio.py $(ARGS)

write-cost: ## what a write costs and allocates over shm, tcp and libfabric, by JMH; 2 minutes
	@fabric="$$(examples/setup/find-libfabric || true)"; LD_LIBRARY_PATH="$$fabric/lib" $(MVN) -Pbenchmark \
	    -pl connector-java/benchmarks -am -DskipTests package -Dbenchmark.main=io.kvmessenger.benchmarks.WriteCost

planner-cost: ## what planning costs, by JMH, with what it allocates; wants an idle machine, 5 minutes
	@$(MVN) -Pbenchmark -pl connector-java/benchmarks -am -DskipTests package \
	    -Dbenchmark.main=io.kvmessenger.benchmarks.PlannerCost

plan-counts: ## how many writes a request needs, by model, sharding and layout
	@$(MVN) -Pbenchmark -pl connector-java/benchmarks -am -DskipTests package \
	    -Dbenchmark.main=io.kvmessenger.benchmarks.PlanCounts

share-cost: ## what dividing a model of 1 T parameters among trainer ranks costs, by number of names
	@$(ENVIRONMENT) run tools -- python/tests/share_cost.py
