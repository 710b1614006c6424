/* One JPEG into the caller's rows, over the libjpeg API.
 *
 * Owns the setjmp/longjmp that libjpeg's errors need, so that none crosses a Rust frame. The
 * settings are those that Pillow leaves at their defaults: ISLOW, fancy upsampling. The source
 * suspends at the end of the data instead of making up an end marker: a file without one is short.
 * Must never write outside the rows of `stride` bytes that `height` is scaled to, nor keep anything past its return.
 */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

enum {
    SAFELIGHT_JPEG_DONE = 0,
    SAFELIGHT_JPEG_BROKEN = 1,    /* libjpeg gave up */
    SAFELIGHT_JPEG_SHORT = 2,     /* the data ends too early */
    SAFELIGHT_JPEG_WARNED = 3,    /* damaged, though libjpeg would go on */
    SAFELIGHT_JPEG_MISMATCH = 4,  /* another size or color than the header walk found */
    SAFELIGHT_JPEG_CANCELLED = 5,
    SAFELIGHT_JPEG_SCANS = 6      /* more scans than are allowed */
};

#define MAX_ROWS 16

/* What a pixel of the result is, by the number that Rust gives it. */
static const J_COLOR_SPACE LAYOUTS[] = {JCS_GRAYSCALE, JCS_RGB, JCS_EXT_RGBX, JCS_EXT_RGBA, JCS_CMYK};
static const int LAYOUT_BYTES[] = {1, 3, 4, 4, 4};

struct error_manager {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    int is_warned;
};

struct monitor {
    struct jpeg_progress_mgr base;
    const unsigned char *cancel;
    int is_cancelled;
    int max_scans, has_too_many_scans;
};

static void on_error(j_common_ptr info) {
    longjmp(((struct error_manager *)info->err)->escape, 1);
}

/* A file that libjpeg warns of is declined, however it would go on: what is damaged early may
 * claim pixels without end. */
static void on_message(j_common_ptr info, int level) {
    if (level < 0) {
        ((struct error_manager *)info->err)->is_warned = 1;
        on_error(info);
    }
}

static void on_source(j_decompress_ptr info) { (void)info; }

static boolean on_fill(j_decompress_ptr info) {
    (void)info;
    return FALSE;
}

static void on_skip(j_decompress_ptr info, long count) {
    if (count <= 0) {
        return;
    }
    size_t skip = (size_t)count;
    if (skip > info->src->bytes_in_buffer) {
        /* The next read finds the source empty and suspends. */
        skip = info->src->bytes_in_buffer;
    }
    info->src->next_input_byte += skip;
    info->src->bytes_in_buffer -= skip;
}

#define TEXT_OF(value) #value
#define TEXT(value) TEXT_OF(value)

/* The version of libjpeg-turbo that this is compiled against and linked with. */
const char *safelight_jpeg_version(void) { return TEXT(LIBJPEG_TURBO_VERSION); }

static void on_progress(j_common_ptr info) {
    struct monitor *monitor = (struct monitor *)info->progress;
    if (__atomic_load_n(monitor->cancel, __ATOMIC_RELAXED)) {
        monitor->is_cancelled = 1;
        on_error(info);
    }
    if (((j_decompress_ptr)info)->input_scan_number > monitor->max_scans) {
        monitor->has_too_many_scans = 1;
        on_error(info);
    }
}

int safelight_jpeg_decode(const unsigned char *data, size_t size, unsigned width, unsigned height,
                          unsigned scale, int components, int layout, unsigned char *out, size_t stride,
                          int max_scans, const unsigned char *cancel) {
    struct jpeg_decompress_struct info;
    struct error_manager errors;
    struct jpeg_source_mgr source;
    struct monitor monitor;
    JSAMPROW rows[MAX_ROWS];
    int verdict;

    /* An error before libjpeg has cleared it must find nothing to free. */
    memset(&info, 0, sizeof info);
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = on_error;
    errors.base.emit_message = on_message;
    errors.is_warned = 0;
    monitor.base.progress_monitor = on_progress;
    monitor.cancel = cancel;
    monitor.is_cancelled = 0;
    monitor.max_scans = max_scans;
    monitor.has_too_many_scans = 0;
    if (setjmp(errors.escape)) {
        verdict = monitor.is_cancelled         ? SAFELIGHT_JPEG_CANCELLED
                  : monitor.has_too_many_scans ? SAFELIGHT_JPEG_SCANS
                  : errors.is_warned           ? SAFELIGHT_JPEG_WARNED
                                               : SAFELIGHT_JPEG_BROKEN;
        jpeg_destroy_decompress(&info);
        return verdict;
    }
    jpeg_create_decompress(&info);
    info.progress = &monitor.base;
    source.init_source = on_source;
    source.fill_input_buffer = on_fill;
    source.skip_input_data = on_skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = on_source;
    source.next_input_byte = data;
    source.bytes_in_buffer = size;
    info.src = &source;

    verdict = SAFELIGHT_JPEG_SHORT;
    if (jpeg_read_header(&info, FALSE) != JPEG_HEADER_OK) {
        goto finish;
    }
    if (info.image_width != width || info.image_height != height ||
        info.num_components != components || info.data_precision != 8) {
        verdict = SAFELIGHT_JPEG_MISMATCH;
        goto finish;
    }
    info.out_color_space = LAYOUTS[layout];
    info.scale_num = 1;
    info.scale_denom = scale;
    if (!jpeg_start_decompress(&info)) {
        goto finish;
    }
    if (info.output_width != (width + scale - 1) / scale ||
        info.output_height != (height + scale - 1) / scale ||
        info.output_components != LAYOUT_BYTES[layout]) {
        verdict = SAFELIGHT_JPEG_MISMATCH;
        goto finish;
    }
    while (info.output_scanline < info.output_height) {
        unsigned start = info.output_scanline, left = info.output_height - start;
        unsigned count = left < MAX_ROWS ? left : MAX_ROWS;
        for (unsigned i = 0; i < count; i++) {
            rows[i] = out + (size_t)(start + i) * stride;
        }
        if (jpeg_read_scanlines(&info, rows, count) == 0) {
            goto finish;
        }
    }
    if (!jpeg_finish_decompress(&info)) {
        goto finish;
    }
    verdict = SAFELIGHT_JPEG_DONE;

finish:
    jpeg_destroy_decompress(&info);
    return verdict;
}
