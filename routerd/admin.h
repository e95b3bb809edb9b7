/* admin: what an operator may ask of routerd: the state of its workers, and that one of them takes
 * no new work and hands on what it has. On the admin listener only. */
#ifndef BATON_ROUTERD_ADMIN_H
#define BATON_ROUTERD_ADMIN_H

#include "common/net/http.h"
#include "routerd/workers.h"

#define ADMIN_WORKERS "/admin/workers"

/* Appends one JSON object for each worker, comma-separated. */
void admin_workers_json(struct workers *ws, struct buf *out);
/* GET /admin/workers */
void admin_list(struct workers *ws, struct http_request *r);
/* POST and DELETE /admin/workers/NAME/drain. drain: what the method asks for; the body of POST may
 * say otherwise. */
void admin_drain(struct workers *ws, struct http_request *r, bool drain);

#endif
