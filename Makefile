# Baton. `make help` lists the targets; V=1 shows the commands; B=DIR builds somewhere else.
#
# Every room (common/base, kernels, routerd, …) becomes one static library, and may use only the
# rooms that NEEDS_<room> names: DESIGN §8, checked by `make lint`. A new .c file is picked up by
# itself; tests/<room>/test_<module>.c becomes the program $(B)/tests/<room>/test_<module>.

B      ?= build
CC     ?= cc
PREFIX ?= /usr/local
V      ?= 0
Q       = $(if $(filter 1,$(V)),,@)

# All cores, unless the command line says otherwise.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

ROOMS = base proto text model kernels kv net engine worker routerd prefilld decoded
DIR_base := common/base
DIR_proto := common/proto
DIR_text := common/text
DIR_model := common/model
DIR_kernels := kernels
DIR_kv := common/kv
DIR_net := common/net
DIR_engine := common/engine
DIR_worker := common/worker
DIR_routerd := routerd
DIR_prefilld := prefilld
DIR_decoded := decoded

# Link order: each room before the rooms that it uses.
NEEDS_base :=
NEEDS_proto := base
NEEDS_text := base
NEEDS_model := text base
NEEDS_kernels := base
NEEDS_kv := base
NEEDS_net := proto base
NEEDS_engine := model text kernels kv base
NEEDS_worker := engine model text kernels kv net proto base
NEEDS_routerd := net proto model text base
NEEDS_prefilld := worker $(NEEDS_worker)
NEEDS_decoded := worker $(NEEDS_worker)

# Rooms of tests alone, in tests/<room>: what lies between rooms that never meet in a program.
TEST_ROOMS = protocol fuzz
NEEDS_protocol := routerd worker $(NEEDS_worker)
NEEDS_fuzz := model text base

# inih comes before ucx, whose libucs exports a copy of its own.
PKGS = inih libuv jansson ucx libpcre2-8 libutf8proc libxxhash openssl libllhttp
MSGPACK := $(shell pkg-config --exists msgpack-c 2>/dev/null && echo msgpack-c || echo msgpack)
export PKG_CONFIG_PATH := /usr/local/lib/pkgconfig:$(PKG_CONFIG_PATH)

# The first make on a bare machine installs what is missing; `make NOSETUP=1` never does.
NODEPS = clean help fmt fmt-check lint uninstall print-rooms
ifneq ($(filter-out $(NODEPS),$(or $(MAKECMDGOALS),all)),)
ifndef NOSETUP
SETUP := $(shell deploy/setup.sh --quick $(if $(filter check% test test-cuda asan tsan,$(MAKECMDGOALS)),--tests) >&2 || echo failed)
ifeq ($(SETUP),failed)
$(error deploy/setup.sh could not provide what the build needs; see above)
endif
endif
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) $(MSGPACK))
PKG_LIBS   := $(shell pkg-config --libs $(PKGS) $(MSGPACK))
CHECK_LIBS := $(shell pkg-config --libs check)
endif

WARN    = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla \
          -Wwrite-strings -Wno-unused-parameter $(if $(filter true,$(CI)),-Werror)
OPT    ?= -O2 -g
SAN    ?=
CFLAGS ?=
ALL_CFLAGS = -std=gnu11 $(OPT) -fno-strict-aliasing -fno-omit-frame-pointer -ffp-contract=off \
             -pthread $(WARN) \
             -D_GNU_SOURCE -I. $(PKG_CFLAGS) $(SAN) $(CFLAGS)
ALL_LDLIBS = -Wl,--as-needed $(PKG_LIBS) -lm -pthread $(SAN) $(LDFLAGS)

# Instruction sets: the suffix of a kernel file selects its flags; the choice is made at run time.
ISA_avx2   = -mavx2 -mfma -mf16c
ISA_avx512 = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni -mfma -mf16c
isa = $(if $(filter %_avx2.c,$1),$(ISA_avx2) -O3,$(if $(filter %_avx512.c %_amx.c,$1),$(ISA_avx512) -O3))

# MAIN files hold a main() and stay out of the room's library.
MAINS = routerd/main.c prefilld/main.c decoded/main.c common/text/baton_text.c kernels/baton_bench.c \
        kernels/bench_kernels.c
src = $(filter-out $(MAINS),$(sort $(wildcard $(DIR_$1)/*.c)))
obj = $(patsubst %.c,$(B)/obj/%.o,$1)
lib = $(foreach r,$1,$(B)/lib/lib$r.a)

PROGRAMS = $(foreach p,routerd prefilld decoded,$(if $(wildcard $p/main.c),$(B)/bin/$p)) \
           $(if $(wildcard common/text/baton_text.c),$(B)/bin/baton-text) \
           $(if $(wildcard kernels/baton_bench.c),$(B)/bin/baton-bench)
UNIT_ROOMS = $(filter-out prefilld decoded,$(ROOMS))
UNITS = $(foreach r,$(UNIT_ROOMS) $(TEST_ROOMS),$(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/$r/test_*.c)))

.PHONY: all run test test-build check check-long bench asan ubsan tsan fmt fmt-check lint tidy \
        install uninstall clean help
.DEFAULT_GOAL := all
.SECONDARY:

all: $(PROGRAMS) ## build the programs into build/bin
	@$(if $(filter yes,$(CUDA)),,echo "  LEFT OUT: the CUDA backend ($(if $(NVCC),CUDA=$(CUDA),no nvcc in PATH)); prefilld and decoded compute on the CPU")

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	@$(if $(filter 1,$(V)),,echo "  CC    $<")
	$(Q)$(CC) $(ALL_CFLAGS) $(call isa,$<) -MMD -MP -c $< -o $@

$(B)/obj/routerd/dashboard.o: routerd/dashboard.html

# Files of tests/<room> that are no test_*.c are linked to each of its tests.
test_helpers = $(call obj,$(filter-out tests/$1/test_%,$(wildcard tests/$1/*.c)))

define room_rule
$(B)/lib/lib$1.a: $$(call obj,$$(call src,$1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^
endef
define test_rule
$(B)/tests/$1/%: $(B)/obj/tests/$1/%.o $(B)/obj/tests/harness.o $(call test_helpers,$1) $(call lib,$2 $(NEEDS_$1))
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	$$(Q)$$(CC) -o $$@ $$(filter %.o,$$^) $$(filter %.a,$$^) $$(CHECK_LIBS) $$(ALL_LDLIBS)
endef
$(foreach r,$(ROOMS),$(eval $(call room_rule,$r))$(eval $(call test_rule,$r,$r)))
$(foreach r,$(TEST_ROOMS),$(eval $(call test_rule,$r)))

CUDA_LINK = -Wl,-u,cuda_create -Wl,-u,cuda_present
include kernels/cuda.mk
link = @mkdir -p $(@D); echo "  LINK  $@"; $(CC) -o $@ $^ $(if $(filter $(CUDA_DIR)/%,$^),$(CUDA_LIBS)) $(ALL_LDLIBS)
$(B)/bin/routerd:     $(B)/obj/routerd/main.o $(call lib,routerd $(NEEDS_routerd)) ; $(link)
$(B)/bin/prefilld:    $(B)/obj/prefilld/main.o $(CUDA_OBJS) $(call lib,prefilld $(NEEDS_prefilld)) ; $(link)
$(B)/bin/decoded:     $(B)/obj/decoded/main.o $(CUDA_OBJS) $(call lib,decoded $(NEEDS_decoded)) ; $(link)
$(B)/bin/baton-text:  $(B)/obj/common/text/baton_text.o $(call lib,model text base) ; $(link)
$(B)/bin/baton-bench: $(B)/obj/kernels/baton_bench.o $(B)/obj/kernels/bench_kernels.o $(call lib,engine $(NEEDS_engine)) ; $(link)
$(B)/tests/bench/%: $(B)/obj/tests/bench/%.o $(call lib,engine $(NEEDS_engine)) ; $(link)

# ---- CUDA ----
# The backend's host code (kernels/cuda_*.c) is in libkernels.a, but no other object names it. A program
# that has the backend is linked with -u cuda_create and with kernels and a table of runtime calls:
# those of the device, where nvcc is, or those of tests/cuda_emu, which need nothing.
CUDA_KERNELS = $(filter-out kernels/gpu_cuda.cu,$(sort $(wildcard kernels/*.cu)))
EMU_OPT = $(OPT)
# Attention has many instances, which take a sanitizer longer to compile than to run without -O.
$(B)/emu/kernels/attention_%.o: EMU_OPT = $(if $(SAN),-O0 -g,$(OPT))
EMU_CXXFLAGS = -std=gnu++17 $(EMU_OPT) -fno-strict-aliasing -fno-omit-frame-pointer -ffp-contract=off \
               -pthread -Wall -Wextra -Wno-unused-parameter -Wno-unknown-pragmas -D_GNU_SOURCE -DCUDA_EMU \
               -I. -Itests/cuda_emu $(SAN)
EMU_OBJS = $(patsubst %.cu,$(B)/emu/%.o,$(CUDA_KERNELS)) $(call obj,$(wildcard tests/cuda_emu/*.c))

$(B)/emu/%.o: %.cu
	@mkdir -p $(@D)
	@$(if $(filter 1,$(V)),,echo "  EMU   $<")
	$(Q)$(CXX) -x c++ $(EMU_CXXFLAGS) -MMD -MP -c $< -o $@

EMU_WRAP = $(foreach f,ucp_context_query ucp_mem_map ucp_am_send_nbx ucp_am_recv_data_nbx,-Wl,--wrap=$f)
emu_link = @mkdir -p $(@D); echo "  LINK  $@"; \
           $(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(CUDA_LINK) $(EMU_WRAP) $(CHECK_LIBS) $(ALL_LDLIBS)
$(B)/bin-emu/routerd: $(B)/bin/routerd
	@mkdir -p $(@D)
	@cp $< $@
$(B)/bin-emu/%: $(B)/obj/%/main.o $(EMU_OBJS) $(call lib,prefilld decoded worker $(NEEDS_worker)) ; $(emu_link)
# Tests of the kernels alone: they need no worker, so they are also built with AddressSanitizer, and
# once for every fault that tests/cuda_emu/mutants.py plants.
KERNEL_TEST_NAMES = test_emu test_linear test_attention test_nodes test_sampling
KERNEL_TESTS = $(addprefix $(B)/tests/cuda/,$(KERNEL_TEST_NAMES))
CUDA_TESTS = $(filter-out $(KERNEL_TESTS),$(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/cuda/test_*.c)))
$(CUDA_TESTS): $(B)/tests/cuda/%: $(B)/obj/tests/cuda/%.o $(B)/obj/tests/harness.o \
               $(call obj,$(filter-out tests/cuda/test_%,$(wildcard tests/cuda/*.c))) $(EMU_OBJS) \
               $(call lib,worker $(NEEDS_worker)) ; $(emu_link)
$(KERNEL_TESTS): $(B)/tests/cuda/%: $(B)/obj/tests/cuda/%.o $(B)/obj/tests/harness.o \
               $(patsubst %.cu,$(B)/emu/%.o,$(CUDA_KERNELS) tests/cuda/probes.cu) $(B)/obj/tests/cuda_emu/emu.o \
               $(B)/obj/common/engine/sample.o $(call lib,base)
	@mkdir -p $(@D); echo "  LINK  $@"
	$(Q)$(CXX) -o $@ $^ $(CHECK_LIBS) $(ALL_LDLIBS)
$(B)/emu/flags: Makefile
	@mkdir -p $(@D); echo "$(CXX) $(EMU_CXXFLAGS)" > $@
.PHONY: kernel-tests
kernel-tests: $(KERNEL_TESTS) $(B)/emu/flags
include tests/gpu/gpu.mk
CUDA_EMU_ALL = $(addprefix $(B)/bin-emu/,routerd prefilld decoded) $(B)/gpu-emu/bench $(CUDA_TESTS) kernel-tests \
               $(if $(SAN),,cuda-asan $(if $(NVCC),cuda-sass))
.PHONY: cuda-asan cuda-sass
# The device code as the compiler made it, for tests/cuda_emu/sass.sh; also when CUDA=no.
ifeq ($(CUDA),yes)
cuda-sass: cuda-objs
else
cuda-sass:
	@$(MAKE) --no-print-directory NOSETUP=1 CUDA=yes cuda-objs
endif
cuda-asan:
	@$(MAKE) --no-print-directory NOSETUP=1 B=$(B)/cuda-asan OPT="-O1 -g" kernel-tests \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined --param asan-use-after-return=0"
cuda-emu: $(CUDA_EMU_ALL)
test-cuda: ## the CUDA backend on the emulation: kernels, host code, whole workers
	@$(MAKE) --no-print-directory NOSETUP=1 $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) cuda-emu
	@B=$(B) tests/cuda/run.sh
.PHONY: cuda-emu test-cuda

-include $(shell find $(B)/obj $(B)/emu -name '*.d' 2>/dev/null)

run: all ## install, build, fetch the model, start a local cluster and follow its logs
	@deploy/run.sh

test-build: $(UNITS)
test: test-build ## unit tests in under a minute; T=name runs one
	@B=$(B) tests/unit.sh $(T)

check: all test-build cuda-emu ## everything CI runs
	@B=$(B) tests/check.sh

check-long: all test-build cuda-emu ## check, and what takes longer
	@B=$(B) LONG=1 tests/check.sh

bench: $(B)/bin/baton-bench $(B)/bin/baton-text ## benchmarks: kernels and engine, then text beside Python packages
	@$(B)/bin/baton-bench
	@B=$(B) tests/text/bench.sh

asan: ## unit and end-to-end tests under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory B=$(B)-asan SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined" OPT="-O1 -g" check-san
ubsan: ## unit tests under UBSan alone
	@$(MAKE) --no-print-directory B=$(B)-ubsan SAN="-fsanitize=undefined -fno-sanitize-recover=undefined" OPT="-O1 -g" SANITIZE=1 test
tsan: ## unit and end-to-end tests under ThreadSanitizer
	@$(MAKE) --no-print-directory B=$(B)-tsan SAN="-fsanitize=thread" OPT="-O1 -g" check-san
.PHONY: check-san
check-san: all test-build cuda-emu
	@B=$(B) SANITIZE=1 tests/check.sh

$(B)/fuzz/baton-fuzz: $(call obj,$(filter-out tests/fuzz/test_%,$(wildcard tests/fuzz/*.c))) $(call lib,$(NEEDS_fuzz))
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	$(Q)$(CC) -fsanitize=fuzzer -o $@ $^ $(ALL_LDLIBS)
fuzz: ## libFuzzer over tests/fuzz, FUZZ_SECONDS (600) each, with clang, ASan and UBSan; T=name runs one
	@$(MAKE) --no-print-directory B=$(B)-fuzz CC=clang CFLAGS="-fsanitize=fuzzer-no-link" OPT="-O1 -g" \
	    SAN="-fsanitize=address,undefined -fno-sanitize-recover=undefined" $(B)-fuzz/fuzz/baton-fuzz
	@B=$(B)-fuzz tests/fuzz/run.sh $(T)
.PHONY: fuzz

C_FILES = $(shell git ls-files '*.c' '*.h')
fmt: ## format the C files
	clang-format -i $(C_FILES)
fmt-check: ## fail when a C file is not formatted
	@clang-format --dry-run -Werror $(C_FILES)
lint: ## who may include whom, file sizes, third-party homes
	@tests/lint.sh
DAEMONS = routerd prefilld decoded
print_config = { echo "\# $1: every setting with its default. Start it with: $1 -c $1.conf"; \
                 echo "\# Written by 'make configs' from the table in the program."; echo; \
                 env -i $(B)/bin/$1 --print-config; }
print_model_config = { echo "\# A model beside the one of routerd.conf, which names this file in models."; \
                       echo "\# Written by 'make configs' from the table in the program."; echo; \
                       $(B)/bin/routerd --print-model-config; }
.PHONY: configs configs-check
configs: all ## write configs/*.conf and docs/SETTINGS.md from the tables in the programs
	@$(foreach d,$(DAEMONS),$(call print_config,$d) > configs/$d.conf;)
	@$(print_model_config) > configs/model.conf
	@deploy/settings.sh $(B)/bin > docs/SETTINGS.md
configs-check: all
	@rc=0; $(foreach d,$(DAEMONS),$(call print_config,$d) | diff -u configs/$d.conf - || rc=1;) \
	 $(print_model_config) | diff -u configs/model.conf - || rc=1; \
	 deploy/settings.sh $(B)/bin | diff -u docs/SETTINGS.md - || rc=1; \
	 [ $$rc = 0 ] || { echo "configs/ or docs/SETTINGS.md is not what the programs print: make configs"; exit 1; }
tidy: ## clang-tidy over the C files
	@clang-tidy --quiet $(filter-out %_avx2.c %_avx512.c %_amx.c,$(filter %.c,$(C_FILES))) -- $(filter-out -Werror,$(ALL_CFLAGS))

BINS = routerd prefilld decoded baton-text
# Units name the programs by their final paths, so they are written for a PREFIX.
DOCDIR = $(PREFIX)/share/doc/baton
UNITS_PLAIN = $(notdir $(wildcard deploy/systemd/*.service deploy/systemd/*.socket deploy/systemd/*.target))
UNITS_SYSTEMD = $(UNITS_PLAIN) prefilld@.service decoded@.service
UNIT_DIR = $(DESTDIR)$(PREFIX)/lib/systemd/system
# unit FROM TO MORE: MORE is what sed replaces besides. Both kinds of workers come from one file.
unit = sed -e 's|@bindir@|$(PREFIX)/bin|g' -e 's|@docdir@|$(DOCDIR)|g' $3 deploy/systemd/$1 > $(UNIT_DIR)/$2 && chmod 644 $(UNIT_DIR)/$2
worker_unit = $(call unit,worker@.service.in,$1@.service,-e 's|@program@|$1|g' -e 's|@kind@|$2|g' -e 's|@digit@|$3|g')
.PHONY: install-units
install-units: ## install the systemd units, the user and the directories they need
	install -d $(addprefix $(DESTDIR)$(PREFIX)/lib/,systemd/system sysusers.d tmpfiles.d)
	$(foreach u,$(UNITS_PLAIN),$(call unit,$u,$u) && ) true
	$(call worker_unit,prefilld,prefill,1)
	$(call worker_unit,decoded,decode,2)
	install -m644 deploy/systemd/baton.sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/baton.conf
	install -m644 deploy/systemd/baton.tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/baton.conf
install: all install-units ## install programs, configuration, units, manual pages and docs below $(DESTDIR)$(PREFIX)
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	for p in $(DAEMONS); do deploy/man.sh $(B)/bin/$$p >$(DESTDIR)$(PREFIX)/share/man/man8/$$p.8 || exit 1; done
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(DOCDIR) $(DESTDIR)/etc/baton
	install -m755 $(addprefix $(B)/bin/,$(BINS)) $(DESTDIR)$(PREFIX)/bin
	install -m644 README.md LICENSE docs/*.md docs/openapi.yaml $(DESTDIR)$(DOCDIR)
	for f in configs/*.conf; do t=$(DESTDIR)/etc/baton/$${f##*/}; [ -e "$$t" ] || install -m644 "$$f" "$$t"; done
uninstall: ## remove what install put there, but not /etc/baton
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(BINS))
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/lib/systemd/system/,$(UNITS_SYSTEMD))
	rm -f $(DESTDIR)$(PREFIX)/lib/sysusers.d/baton.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/baton.conf
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/share/man/man8/,$(addsuffix .8,$(DAEMONS)))
	rm -rf $(DESTDIR)$(DOCDIR)

# For tests/lint.sh: a directory (or a program of its own), its room, and the rooms it may use.
.PHONY: print-rooms
print-rooms:
	@$(foreach r,$(ROOMS),echo $(DIR_$r) $r $(NEEDS_$r);)
	@$(foreach r,$(TEST_ROOMS),echo tests/$r $r $(NEEDS_$r);)
	@echo common/text/baton_text.c text model base
	@echo kernels/baton_bench.c kernels engine $(NEEDS_engine)

clean: ## remove the build directories
	rm -rf build build-asan build-ubsan build-tsan build-cuda
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
