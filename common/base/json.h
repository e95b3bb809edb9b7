/* json: the one home of jansson. Files that read or write JSON include this header. */
#ifndef BATON_BASE_JSON_H
#define BATON_BASE_JSON_H

#include <jansson.h>

#endif
