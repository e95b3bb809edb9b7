/* gpu_api: which table the program has, and what its errors mean; see gpu_api.h. */
#include "kernels/gpu_api.h"

#include <string.h>

#include "common/base/log.h"

int gpu_status(int rc)
{
    return rc == 0 ? STATUS_OK : rc == GPU_ERROR_MEMORY ? STATUS_NOMEM : STATUS_INTERNAL;
}

int gpu_failed(const struct gpu_api *api, int rc, const char *call)
{
    int n = (int)strcspn(call, "("); /* without its arguments */
    log_error("%s: %.*s: %s (%d)", api->name, n, call, api->error_text(rc), rc);
    return gpu_status(rc);
}
