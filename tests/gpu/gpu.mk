# Programs of the check on a GPU (tests/gpu/run.sh), into $(B)/gpu; `make gpu`. Needs nvcc and a
# build with CUDA=yes. For one architecture only, so that they are small:
#
#   make CUDA=yes GPU_ARCH=90a CUDA_DIR=build-cuda/90a gpu
#
# What they need of shared libraries is copied beside them, for a machine without packages.

GPU_PROGRAMS = $(addprefix $(B)/gpu/,ceilings bench test_engine test_linear test_attention test_nodes test_sampling)
GPU_HOST = $(filter-out %/kernels/gpu_cuda.o,$(CUDA_OBJS))
gpu_link = @mkdir -p $(@D); echo "  LINK  $@"; \
           $(CXX) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(CUDA_LIBS) $(CHECK_LIBS) $(ALL_LDLIBS) \
           -Wl,-rpath,'$$ORIGIN/lib'

$(B)/gpu/ceilings: $(CUDA_DIR)/tests/gpu/ceilings.o ; $(gpu_link)
$(B)/gpu/bench: $(B)/obj/tests/gpu/bench.o $(CUDA_OBJS) $(call lib,kernels base) ; $(gpu_link)
$(B)/gpu/test_engine: $(B)/obj/tests/cuda/test_engine.o $(B)/obj/tests/gpu/no_fake.o $(B)/obj/tests/harness.o \
                      $(CUDA_OBJS) $(call lib,engine $(NEEDS_engine)) ; $(gpu_link)
$(B)/gpu/test_%: $(B)/obj/tests/cuda/test_%.o $(B)/obj/tests/harness.o $(CUDA_DIR)/tests/gpu/shim.o $(GPU_HOST) \
                 $(B)/obj/common/engine/sample.o $(call lib,base)
	@mkdir -p $(@D); echo "  LINK  $@"
	$(Q)$(CXX) -o $@ $(filter %.o,$^) $(filter %.a,$^) -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt \
	    $(CHECK_LIBS) $(ALL_LDLIBS) -Wl,-rpath,'$$ORIGIN/lib' -Wl,--wrap=posix_memalign -Wl,--wrap=free

.PHONY: gpu
gpu: $(GPU_PROGRAMS) ## the programs of tests/gpu/run.sh
	@mkdir -p $(B)/gpu/lib; for p in $(GPU_PROGRAMS); do ldd $$p; done | \
	    awk '$$3 ~ /^\// && $$1 !~ /^(libc|libm|libdl|librt|libpthread|ld-linux.*|libgcc_s)\.so/ {print $$3}' | \
	    sort -u | xargs -r cp -t $(B)/gpu/lib

# The same bench over the emulation, so that it is known to run before it meets a device.
$(B)/gpu-emu/bench: $(B)/obj/tests/gpu/bench.o $(EMU_OBJS) $(call lib,kernels base) ; $(emu_link)
