/* shards: the safetensors files of a Hugging Face directory: one, or those that an index names.
 *
 * model.safetensors.index.json maps each tensor to the file it is in. The names of files come from
 * an untrusted file: only plain names that end in ".safetensors" are opened, and only in the
 * directory (model_dir_open), at most SHARDS_MAX of them. The map and the files must agree both
 * ways: each tensor of the map is in its file, and each tensor of a file is in the map with that
 * file. So no tensor comes from two places, and which file it came from does not matter. */
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/model/model_internal.h"

#define INDEX      "model.safetensors.index.json"
#define INDEX_MAX  ((size_t)16 << 20)
#define SHARDS_MAX 1024

static int add_part(struct model_source *s, const char *name, char *err, size_t errlen)
{
    struct model_part *p = &s->parts[s->n_parts];
    TRY(model_dir_open(s->dir, name, &p->file, err, errlen));
    s->n_parts++; /* from here on model_close closes it */
    return safetensors_open(&p->file, &p->safetensors, err, errlen);
}

static int check_name(const struct model_source *s, const char *tensor, const json_t *file,
                      char *err, size_t errlen)
{
    static const char end[] = ".safetensors";
    const char *name = json_string_value(file);
    size_t n = name ? strlen(name) : 0, k = sizeof end - 1;
    if (n <= k || strcmp(name + n - k, end) != 0)
        return model_error(err, errlen, STATUS_FORMAT,
                           "%s/" INDEX ": tensor '%.128s' is in no *.safetensors file", s->dir,
                           tensor);
    return 0;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the map, in order; loans from it. */
static int list_files(const struct model_source *s, json_t *map, const char **names, size_t *n,
                      char *err, size_t errlen)
{
    const char *tensor;
    json_t *file;
    size_t count = 0, kept = 0;
    json_object_foreach(map, tensor, file)
    {
        TRY(check_name(s, tensor, file, err, errlen));
        names[count++] = json_string_value(file);
    }
    qsort(names, count, sizeof *names, by_string);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || strcmp(names[i], names[kept - 1]) != 0)
            names[kept++] = names[i];
    if (kept == 0 || kept > SHARDS_MAX)
        return model_error(err, errlen, STATUS_FORMAT, "%s/" INDEX ": names %zu files, not 1 to %d",
                           s->dir, kept, SHARDS_MAX);
    *n = kept;
    return 0;
}

/* Every tensor of the file is in the map, with this file; returns how many there are. */
static int check_part(const struct model_source *s, const struct model_part *p, const char *name,
                      json_t *map, size_t *n, char *err, size_t errlen)
{
    for (size_t i = 0; i < p->safetensors.n; i++) {
        const char *tensor = p->safetensors.tensors[i].name;
        const char *file = json_string_value(json_object_get(map, tensor));
        if (!file || strcmp(file, name) != 0)
            return model_error(err, errlen, STATUS_FORMAT,
                               "%s/" INDEX ": tensor '%s' is in %s, the index says %s", s->dir,
                               tensor, name, file ? file : "nothing of it");
    }
    *n += p->safetensors.n;
    return 0;
}

static int open_parts(struct model_source *s, json_t *map, char *err, size_t errlen)
{
    size_t n = 0, found = 0, wanted = json_object_size(map);
    const char **names = mem_array(wanted, sizeof *names);
    int rc = names ? list_files(s, map, names, &n, err, errlen)
                   : model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", s->dir);
    if (!rc && !(s->parts = mem_array(n, sizeof *s->parts)))
        rc = model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", s->dir);
    for (size_t i = 0; !rc && i < n; i++) {
        rc = add_part(s, names[i], err, errlen);
        if (!rc)
            rc = check_part(s, &s->parts[i], names[i], map, &found, err, errlen);
    }
    if (!rc && found != wanted)
        rc = model_error(err, errlen, STATUS_FORMAT,
                         "%s/" INDEX ": %zu of its %zu tensors are not in their files", s->dir,
                         wanted - found, wanted);
    free(names);
    return rc;
}

static int open_index(struct model_source *s, char *err, size_t errlen)
{
    json_t *root;
    TRY(model_dir_json(s->dir, INDEX, INDEX_MAX, &root, err, errlen));
    json_t *map = json_object_get(root, "weight_map");
    int rc = json_is_object(map) ? open_parts(s, map, err, errlen)
                                 : model_error(err, errlen, STATUS_FORMAT,
                                               "%s/" INDEX ": 'weight_map' is no object", s->dir);
    json_decref(root);
    return rc;
}

int model_parts_open(struct model_source *s, char *err, size_t errlen)
{
    if (!(s->parts = mem_array(1, sizeof *s->parts)))
        return model_error(err, errlen, STATUS_NOMEM, "%s: out of memory", s->dir);
    int rc = add_part(s, "model.safetensors", err, errlen);
    if (rc != STATUS_NOTFOUND || s->n_parts > 0)
        return rc;
    free(s->parts);
    s->parts = NULL;
    rc = open_index(s, err, errlen);
    if (rc == STATUS_NOTFOUND && s->n_parts == 0 && !s->parts)
        return model_error(err, errlen, rc,
                           "%s: there is no model.safetensors and no index of shards", s->dir);
    return rc;
}

void model_parts_close(struct model_source *s)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        safetensors_close(&s->parts[i].safetensors);
        model_file_close(&s->parts[i].file);
    }
    free(s->parts);
    s->parts = NULL;
    s->n_parts = 0;
}
