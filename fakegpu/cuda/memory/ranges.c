#include "cuda/memory/ranges.h"

static struct range *rotate_right(struct range *top)
{
    struct range *left = top->left;
    top->left = left->right;
    left->right = top;
    return left;
}

static struct range *rotate_left(struct range *top)
{
    struct range *right = top->right;
    top->right = right->left;
    right->left = top;
    return right;
}

static struct range *insert(struct range *top, struct range *range)
{
    if (!top)
        return range;
    if (range->start < top->start) {
        top->left = insert(top->left, range);
        return top->left->priority > top->priority ? rotate_right(top) : top;
    }
    top->right = insert(top->right, range);
    return top->right->priority > top->priority ? rotate_left(top) : top;
}

void ranges_insert(struct ranges *ranges, struct range *range)
{
    /* A linear congruence is random enough to keep the tree flat. */
    ranges->seed = ranges->seed * 1664525u + 1013904223u;
    range->priority = ranges->seed;
    range->left = range->right = NULL;
    ranges->root = insert(ranges->root, range);
}

static struct range *join(struct range *left, struct range *right)
{
    if (!left || !right)
        return left ? left : right;
    if (left->priority > right->priority) {
        left->right = join(left->right, right);
        return left;
    }
    right->left = join(left, right->left);
    return right;
}

void ranges_remove(struct ranges *ranges, struct range *range)
{
    struct range **link = &ranges->root;
    while (*link && *link != range)
        link = range->start < (*link)->start ? &(*link)->left : &(*link)->right;
    if (*link)
        *link = join(range->left, range->right);
}

struct range *ranges_at(const struct ranges *ranges, uintptr_t address)
{
    struct range *range = ranges->root;
    while (range && (address < range->start || address - range->start >= range->size))
        range = address < range->start ? range->left : range->right;
    return range;
}

struct range *ranges_from(const struct ranges *ranges, uintptr_t address)
{
    struct range *range = ranges->root, *found = NULL;
    while (range) {
        if (range->start + range->size > address) {
            found = range;
            range = range->left;
        } else {
            range = range->right;
        }
    }
    return found;
}
