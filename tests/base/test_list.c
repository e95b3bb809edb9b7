/* list: order, removal while walking, and nodes on no list. */
#include "common/base/list.h"

#include <string.h>

#include "tests/harness.h"

struct item {
    int id;
    struct list link;
};

/* The ids of a list as a string, read forwards; checks that the way back is the same. */
static const char *ids(struct list *l)
{
    static char text[64];
    size_t n = 0, back = 0;
    LIST_FOR (it, l) {
        ck_assert_ptr_eq(it->next->prev, it);
        ck_assert_ptr_eq(it->prev->next, it);
        text[n++] = (char)('0' + container_of(it, struct item, link)->id);
    }
    text[n] = 0;
    for (struct list *it = l->prev; it != l; it = it->prev)
        back++;
    ck_assert_uint_eq(n, back);
    return text;
}

START_TEST(list_keeps_order)
{
    struct list l;
    struct item a = {.id = 1}, b = {.id = 2}, c = {.id = 3}, d = {.id = 4};
    list_init(&l);
    ck_assert(list_empty(&l));
    ck_assert_str_eq(ids(&l), "");
    list_push_back(&l, &b.link);
    list_push_back(&l, &c.link);
    list_push_front(&l, &a.link);
    list_insert_before(&c.link, &d.link);
    ck_assert_str_eq(ids(&l), "1243");
    list_remove(&a.link);
    list_remove(&c.link);
    ck_assert_str_eq(ids(&l), "24");
    list_remove(&c.link); /* on no list: harmless */
    ck_assert_str_eq(ids(&l), "24");
    list_push_front(&l, &c.link);
    ck_assert_str_eq(ids(&l), "324");
    ck_assert(!list_empty(&l));
}
END_TEST

START_TEST(list_for_safe_allows_removal)
{
    struct list l;
    struct item items[9];
    list_init(&l);
    for (int i = 0; i < 9; i++) {
        items[i].id = i;
        list_push_back(&l, &items[i].link);
    }
    LIST_FOR_SAFE (it, &l) {
        if (container_of(it, struct item, link)->id % 3 != 1)
            list_remove(it);
    }
    ck_assert_str_eq(ids(&l), "147");
    LIST_FOR_SAFE (it, &l) {
        list_remove(it);
    }
    ck_assert(list_empty(&l));
}
END_TEST

Suite *test_suite(void)
{
    Suite *s = suite_create("list");
    TCase *t = tcase_create("list");
    tcase_add_test(t, list_keeps_order);
    tcase_add_test(t, list_for_safe_allows_removal);
    suite_add_tcase(s, t);
    return s;
}
