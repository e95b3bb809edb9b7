/* dashboard: the page at /, and the feed that keeps it current (/debug/live, server-sent events).
 * The page is one file in memory and holds no data, so it needs no key; the feed does. While nobody
 * watches no timer runs. */
#ifndef BATON_ROUTERD_DASHBOARD_H
#define BATON_ROUTERD_DASHBOARD_H

#include "common/net/http.h"
#include "routerd/models.h"
#include "routerd/relay.h"
#include "routerd/workers.h"

struct dashboard;
int dashboard_create(struct loop *loop, struct relay *relay, struct workers *workers,
                     const struct models *models, struct dashboard **out) WARN_UNUSED;
void dashboard_destroy(struct dashboard *d); /* NULL is fine; feeds that are open are cut */
void dashboard_page(struct http_request *r);
/* Takes over the request. Frames come until the client leaves. */
void dashboard_watch(struct dashboard *d, struct http_request *r);
/* Ends all feeds: the router drains. */
void dashboard_close(struct dashboard *d);
/* One frame, as JSON; for the feed and for tests. */
void dashboard_frame(struct dashboard *d, struct buf *out);

#endif
