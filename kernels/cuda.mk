# The CUDA backend for devices: included by the Makefile. Without nvcc nothing here happens, and the
# programs have no backend "cuda".
#
#   CUDA=no        leave it out although nvcc is there
#   CUDA_DIR=DIR   where its objects go; they do not depend on B, so all build directories share them
#   GPU_ARCH=90a   for this architecture only
#
# With CUDA 12.4 to 12.7, which do not know sm_100, that one is left out.

NVCC := $(shell command -v nvcc 2>/dev/null)
CUDA ?= $(if $(NVCC),yes,no)
CUDA_DIR ?= build-cuda

ifeq ($(CUDA),yes)
NVCC_VERSION := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
NVCC_SM100 := $(shell set -- $(NVCC_VERSION); [ "$$1" -gt 12 ] || { [ "$$1" = 12 ] && [ "$$2" -ge 8 ]; } && echo yes)
CUDA_ARCHS = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
ifeq ($(NVCC_SM100),yes)
CUDA_ARCHS += -gencode arch=compute_100,code=sm_100 -gencode arch=compute_100,code=compute_100
else
CUDA_ARCHS += -gencode arch=compute_90,code=compute_90
endif
ifdef GPU_ARCH
CUDA_ARCHS = -gencode arch=compute_$(GPU_ARCH),code=sm_$(GPU_ARCH)
endif
NVCC_FLAGS = -std=c++17 -O3 -lineinfo -I. $(CUDA_ARCHS) -Xcompiler -Wall,-Wno-unused-function
CUDA_OBJS = $(patsubst %.cu,$(CUDA_DIR)/%.o,$(sort $(wildcard kernels/*.cu)))
CUDA_LIBS = $(CUDA_LINK) -L$(dir $(NVCC))../lib64 -lcudart_static -ldl -lrt -lstdc++

$(CUDA_DIR)/%.o: %.cu
	@mkdir -p $(@D)
	@$(if $(filter 1,$(V)),,echo "  NVCC  $<")
	$(Q)kernels/nvcc.sh $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -MT $@ -c $< -o $@

.PHONY: cuda-objs
cuda-objs: $(CUDA_OBJS)

-include $(wildcard $(CUDA_DIR)/kernels/*.d $(CUDA_DIR)/tests/gpu/*.d)
endif
