/* owner: who has a request while its answer is being made; the request's data (http_set_data)
 * points to it. */
#ifndef BATON_ROUTERD_OWNER_H
#define BATON_ROUTERD_OWNER_H

struct request_owner {
    /* The client has gone, and with it the request. */
    void (*client_gone)(struct request_owner *o);
};

#endif
