"""Messages of the C sources, read from their string literals."""

from documentation.c_messages import of_source

SOURCE = r"""#include "region.h"
/* "a text in a comment" */
#define FORMAT "a text of the preprocessor " \
    "on two lines"
_Static_assert(sizeof(struct page) == 96, "the layout is a file's");
static const char quote = '"'; // "another comment here"

void tell(int bytes, const char *path)
{
    say("%llu bytes of %.48s: more than is left, 100%% of it", bytes, path);
    fprintf(stderr, "arbiter: %s/" USAGE ": %s; the container "
                    "goes on\n", path, problem);
    *problem = bytes ? "no regular file" : "short";
    open(path, "r");
    tell("%.*s: unknown key", length, key);
    REPORT(path, "it is \"odd\" there");
}
"""


def test_a_message_is_a_text_of_several_words_with_placeholders() -> None:
    assert [(one.where, one.template) for one in of_source("x.c", SOURCE)] == [
        ("x.c:10", "… bytes of …: more than is left, 100% of it"),
        ("x.c:11", "arbiter: …/…: …; the container goes on"),
        ("x.c:13", "no regular file"),
        ("x.c:15", "…: unknown key"),
        ("x.c:16", 'it is "odd" there'),
    ]
