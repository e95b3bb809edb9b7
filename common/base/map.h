/* map: the one home of uthash, with allocation failure reported instead of exit(): after HASH_ADD,
 * an element whose hh.tbl is NULL was not added. */
#ifndef BATON_BASE_MAP_H
#define BATON_BASE_MAP_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#endif
