/* fake_ucx: UCX with CUDA support, as far as the data link can tell, in the programs that
 * $FAKE_GPU_UCX names.
 *
 * The linker puts these functions in front of UCX's own (--wrap). The context says that it knows
 * CUDA memory; the emulated device's memory, which is the host's, is then registered and sent as
 * what it is. What a real device would not forgive aborts: memory of the device whose kind is not
 * named, in several pieces, or sent along with the message, for which the CPU would have to read
 * it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "tests/cuda_emu/fake_internal.h"

ucs_status_t __real_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
ucs_status_t __real_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *out);
ucs_status_ptr_t __real_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_ptr_t __real_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);
ucs_status_t __wrap_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *out);
ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param);
ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param);

ucs_status_t __wrap_ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr)
{
    const char *programs = getenv("FAKE_GPU_UCX");
    ucs_status_t s = __real_ucp_context_query(context, attr);
    if (s == UCS_OK && (attr->field_mask & UCP_ATTR_FIELD_MEMORY_TYPES) && programs &&
        strstr(programs, program_invocation_short_name))
        attr->memory_types |= UCS_BIT(UCS_MEMORY_TYPE_CUDA);
    return s;
}

ucs_status_t __wrap_ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                                ucp_mem_h *out)
{
    ucp_mem_map_params_t p = *params;
    if ((p.field_mask & UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE) &&
        p.memory_type == UCS_MEMORY_TYPE_CUDA) {
        if (!fake_gpu_is_device(p.address))
            fake_die("ucp_mem_map: %p is no device memory", p.address);
        p.memory_type = UCS_MEMORY_TYPE_HOST;
    }
    return __real_ucp_mem_map(context, &p, out);
}

/* The parameters for the emulated memory; dies when they would be wrong for a device's. */
static ucp_request_param_t checked(const char *function, const void *buffer, size_t count,
                                   const ucp_request_param_t *param)
{
    ucp_request_param_t p = *param;
    bool typed = p.op_attr_mask & UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    if ((p.op_attr_mask & UCP_OP_ATTR_FIELD_DATATYPE) && p.datatype == UCP_DATATYPE_IOV) {
        const ucp_dt_iov_t *iov = buffer;
        for (size_t i = 0; i < count; i++)
            if (fake_gpu_is_device(iov[i].buffer))
                fake_die("%s: device memory in %zu pieces", function, count);
    } else if (fake_gpu_is_device(buffer)) {
        if (!typed || p.memory_type != UCS_MEMORY_TYPE_CUDA)
            fake_die("%s: device memory that is not named as such", function);
    } else if (typed && p.memory_type == UCS_MEMORY_TYPE_CUDA) {
        fake_die("%s: host memory named as a device's", function);
    }
    if (typed)
        p.memory_type = UCS_MEMORY_TYPE_HOST;
    return p;
}

ucs_status_ptr_t __wrap_ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                        size_t header_length, const void *buffer, size_t count,
                                        const ucp_request_param_t *param)
{
    ucp_request_param_t p = checked("ucp_am_send_nbx", buffer, count, param);
    if (fake_gpu_is_device(buffer) &&
        (!(p.op_attr_mask & UCP_OP_ATTR_FIELD_FLAGS) || !(p.flags & UCP_AM_SEND_FLAG_RNDV)))
        fake_die("ucp_am_send_nbx: device memory without rendezvous");
    return __real_ucp_am_send_nbx(ep, id, header, header_length, buffer, count, &p);
}

ucs_status_ptr_t __wrap_ucp_am_recv_data_nbx(ucp_worker_h worker, void *data_desc, void *buffer,
                                             size_t count, const ucp_request_param_t *param)
{
    ucp_request_param_t p = checked("ucp_am_recv_data_nbx", buffer, count, param);
    return __real_ucp_am_recv_data_nbx(worker, data_desc, buffer, count, &p);
}
