/* prompt: messages (through the model's chat template) or completion prompts to token ids. */
#ifndef BATON_ROUTERD_PROMPT_H
#define BATON_ROUTERD_PROMPT_H

#include "routerd/api.h"

/* Fills p->prompts from "messages". What users wrote never becomes control tokens (B31): only text
 * that the template itself wrote may name them. */
int prompt_from_messages(const struct api_env *env, const json_t *o, int64_t now,
                         struct api_params *p, struct api_error *e) WARN_UNUSED;
/* Fills p->prompts from the member of that name: a string, an array of strings, an array of ids, or
 * an array of such arrays. Text is tokenised with BOS where the model wants it (and the request,
 * "add_special_tokens"), and may name special tokens. name is static. */
int prompt_from_texts(const struct api_env *env, const json_t *o, const char *name,
                      struct api_params *p, struct api_error *e) WARN_UNUSED;
/* Applies "truncate_prompt_tokens": the last so many tokens of each prompt are kept; -1: as many as
 * leave room for the answer. */
int prompt_truncate(const struct api_env *env, const json_t *o, struct api_params *p,
                    struct api_error *e) WARN_UNUSED;

#endif
