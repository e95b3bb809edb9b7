/* responses_request: the body of POST /v1/responses as that of a chat request. */
#ifndef BATON_ROUTERD_RESPONSES_REQUEST_H
#define BATON_ROUTERD_RESPONSES_REQUEST_H

#include "routerd/fields.h"

/* Builds the chat request that asks for the same (a new reference), and the members that a response
 * object repeats of its request, as JSON text without braces: "\"tools\":[],…" (to be freed). */
int responses_translate(const json_t *request, json_t **chat, char **echo,
                        struct api_error *e) WARN_UNUSED;
/* What the reading of that chat request had to say, in the words of the Responses API. */
void responses_rename(const json_t *request, struct api_error *e);

#endif
