/* A light reading of PTX: entries with their parameters, globals with their sizes, and our directives in comments. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/module/image.h"

struct reader {
    const char *at, *end;
    int depth; /* of braces */
    int duration_parameter;
    uint64_t duration_ns;
    char word[256];
};

static void take_directive(struct reader *reader, const char *comment, size_t length)
{
    static const char head[] = "fakegpu: duration ";
    char text[64];
    while (length && (*comment == ' ' || *comment == '\t'))
        comment++, length--;
    if (length < sizeof head || strncmp(comment, head, sizeof head - 1))
        return;
    length -= sizeof head - 1;
    if (length >= sizeof text)
        length = sizeof text - 1;
    memcpy(text, comment + sizeof head - 1, length);
    text[length] = '\0';
    if (!strncmp(text, "param ", 6)) {
        reader->duration_parameter = abs(atoi(text + 6));
    } else {
        reader->duration_parameter = -1;
        reader->duration_ns = strtoull(text, NULL, 10);
    }
}

static bool word_byte(char byte)
{
    return isalnum((unsigned char)byte) || strchr("_$.%@", byte);
}

/* The next word, or one other character; comments and strings are passed over. False at the end. */
static bool next(struct reader *reader)
{
    while (reader->at < reader->end && *reader->at) {
        const char *at = reader->at;
        size_t left = (size_t)(reader->end - at);
        if (isspace((unsigned char)*at)) {
            reader->at++;
        } else if (left > 1 && at[0] == '/' && at[1] == '/') {
            const char *line_end = memchr(at, '\n', left);
            take_directive(reader, at + 2, (line_end ? (size_t)(line_end - at) : left) - 2);
            reader->at = line_end ? line_end : reader->end;
        } else if (left > 1 && at[0] == '/' && at[1] == '*') {
            for (at += 2; at + 1 < reader->end && !(at[0] == '*' && at[1] == '/'); at++)
                ;
            reader->at = at + 1 < reader->end ? at + 2 : reader->end;
        } else if (*at == '"') {
            for (at++; at < reader->end && *at != '"'; at++)
                ;
            reader->at = at < reader->end ? at + 1 : at;
        } else {
            size_t length = 0;
            if (word_byte(*at)) {
                while (length < left && at[length] && word_byte(at[length]))
                    length++;
            } else {
                length = 1;
            }
            reader->at += length;
            if (length >= sizeof reader->word)
                length = sizeof reader->word - 1;
            memcpy(reader->word, at, length);
            reader->word[length] = '\0';
            if (*reader->word == '{')
                reader->depth++;
            if (*reader->word == '}')
                reader->depth--;
            return true;
        }
    }
    reader->word[0] = '\0';
    return false;
}

/* Bytes of a type's name, such as .u64; 0 for other words. */
static size_t type_bytes(const char *word)
{
    if (!strcmp(word, ".pred"))
        return 1;
    if (word[0] != '.' || !word[1] || !strchr("bfsu", word[1]))
        return 0;
    switch (atoi(word + 2)) {
    case 8:
        return 1;
    case 16:
        return 2;
    case 32:
        return 4;
    case 64:
        return 8;
    case 128:
        return 16;
    default:
        return 0;
    }
}

/* A variable's declaration after its state space, up to one of `ends`: its name, size and alignment. */
static size_t declaration(struct reader *reader, const char *ends, char name[256], size_t *alignment)
{
    size_t bytes = 0, elements = 1, vector = 1;
    *alignment = 0;
    name[0] = '\0';
    while (next(reader) && !strchr(ends, *reader->word)) {
        size_t of_type = type_bytes(reader->word);
        if (of_type) {
            bytes = of_type;
        } else if (!strcmp(reader->word, ".align")) {
            if (next(reader))
                *alignment = strtoul(reader->word, NULL, 10);
        } else if (!strcmp(reader->word, ".v2")) {
            vector = 2;
        } else if (!strcmp(reader->word, ".v4")) {
            vector = 4;
        } else if (*reader->word == '[') {
            if (next(reader) && isdigit((unsigned char)*reader->word))
                elements *= strtoul(reader->word, NULL, 10);
        } else if (*reader->word != '.' && word_byte(*reader->word) && !name[0]) {
            strcpy(name, reader->word);
        }
    }
    if (!*alignment)
        *alignment = bytes ? bytes * vector : 1;
    return bytes * vector * elements;
}

static void parameters(struct reader *reader, struct kernel_image *kernel)
{
    size_t offset = 0, alignment;
    char name[256];
    kernel->parameters_known = true;
    do {
        size_t bytes = declaration(reader, ",)", name, &alignment);
        if (!name[0] || kernel->parameter_count == KERNEL_PARAMETERS_MAX)
            continue;
        offset = (offset + alignment - 1) / alignment * alignment;
        kernel->parameters[kernel->parameter_count].offset = (uint32_t)offset;
        kernel->parameters[kernel->parameter_count++].size = (uint32_t)bytes;
        offset += bytes;
    } while (*reader->word == ',');
}

static CUresult entry(struct reader *reader, struct image *image)
{
    if (!next(reader))
        return CUDA_ERROR_INVALID_PTX;
    struct kernel_image *kernel = image_add_kernel(image, reader->word, strlen(reader->word));
    if (!kernel)
        return CUDA_ERROR_OUT_OF_MEMORY;
    kernel->duration_parameter = reader->duration_parameter;
    kernel->duration_ns = reader->duration_ns;
    reader->duration_parameter = -1;
    reader->duration_ns = KERNEL_DEFAULT_NS;
    kernel->parameters_known = true;
    if (!next(reader))
        return CUDA_ERROR_INVALID_PTX;
    if (*reader->word == '(')
        parameters(reader, kernel);
    int asked = kernel->duration_parameter;
    if (asked >= 0 && (asked >= (int)kernel->parameter_count || kernel->parameters[asked].size != sizeof(uint64_t)))
        return CUDA_ERROR_INVALID_PTX;
    return CUDA_SUCCESS;
}

CUresult ptx_read(const char *text, size_t size, struct image *image)
{
    struct reader reader = {
        .at = text, .end = text + size, .duration_parameter = -1, .duration_ns = KERNEL_DEFAULT_NS};
    bool version = false, linked_elsewhere = false;
    CUresult result = CUDA_SUCCESS;
    while (result == CUDA_SUCCESS && next(&reader)) {
        bool global = !strcmp(reader.word, ".global"), constant = !strcmp(reader.word, ".const");
        if (!strcmp(reader.word, ".version")) {
            version = true;
        } else if (!strcmp(reader.word, ".entry")) {
            result = entry(&reader, image);
        } else if (!strcmp(reader.word, ".extern")) {
            linked_elsewhere = true;
        } else if (reader.depth == 0 && (global || constant)) {
            char name[256];
            size_t alignment, bytes = declaration(&reader, ";=", name, &alignment);
            struct global_image *made =
                name[0] && !linked_elsewhere ? image_add_global(image, name, strlen(name), bytes) : NULL;
            if (made)
                made->constant = constant;
        }
        if (*reader.word == ';')
            linked_elsewhere = false;
    }
    return result == CUDA_SUCCESS && !version ? CUDA_ERROR_INVALID_PTX : result;
}
