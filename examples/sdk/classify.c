/* Which digit a picture shows: the network of `npusim demo`, in C.
 *
 *   classify digits.npubin digits.safetensors IMAGE.png
 *
 * The picture is read by libpng, as grey levels, light on dark, and scaled to the 8 x 8 pixels that
 * the network looks at.
 */
#include <npusim/npusim.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 8, CLASSES = 10, MOST = 4096 };

static int fail(const char* what) {
  fprintf(stderr, "error: %s\n", what);
  return 2;
}

/* Reads a picture as 8 x 8 means of its pixels, from 0 to 1. Returns what is wrong, or null. */
static const char* read_image(const char* path, float out[SIDE * SIDE]) {
  static char said[128];
  float counts[SIDE * SIDE] = {0};
  png_image picture = {0};
  unsigned char* pixels;
  unsigned x, y, i;
  picture.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_file(&picture, path)) {
    snprintf(said, sizeof said, "%s: %s", path, picture.message);
    return said;
  }
  picture.format = PNG_FORMAT_GRAY; /* whatever the file has: colours, a palette, 16 bits */
  if (picture.width < SIDE || picture.height < SIDE || picture.width > MOST ||
      picture.height > MOST) {
    png_image_free(&picture);
    return "the picture is not from 8 x 8 to 4096 x 4096 pixels";
  }
  pixels = malloc(PNG_IMAGE_SIZE(picture));
  if (pixels == NULL || !png_image_finish_read(&picture, NULL, pixels, 0, NULL)) {
    snprintf(said, sizeof said, "%s: %s", path, pixels ? picture.message : "out of memory");
    png_image_free(&picture);
    free(pixels);
    return said;
  }
  for (i = 0; i < SIDE * SIDE; ++i) out[i] = 0;
  for (y = 0; y < picture.height; ++y) {
    for (x = 0; x < picture.width; ++x) {
      const unsigned at = y * SIDE / picture.height * SIDE + x * SIDE / picture.width;
      out[at] += (float)pixels[y * picture.width + x] / 255;
      counts[at] += 1;
    }
  }
  for (i = 0; i < SIDE * SIDE; ++i) out[i] /= counts[i];
  free(pixels);
  return NULL;
}

static npusim_status classify(const char* program_path, const char* weights_path,
                              const float* image, float* scores) {
  static const int64_t shape[] = {1, 1, SIDE, SIDE};
  npusim_device* device = NULL;
  npusim_program* program = NULL;
  npusim_weights* weights = NULL;
  npusim_executor* executor = NULL;
  npusim_tensor input = NPUSIM_TENSOR_INIT, output = NPUSIM_TENSOR_INIT;
  npusim_run_options options = NPUSIM_RUN_OPTIONS_INIT;
  npusim_status status = npusim_device_open("cpu", NULL, &device);
  if (status == NPUSIM_OK) status = npusim_program_open(program_path, &program);
  if (status == NPUSIM_OK)
    status = npusim_weights_open(program, device, weights_path, NULL, &weights);
  if (status == NPUSIM_OK) status = npusim_executor_create(program, device, &executor);
  if (status == NPUSIM_OK) {
    input.data = (void*)image;
    input.bytes = SIDE * SIDE * sizeof *image;
    input.shape = shape;
    input.rank = 4;
    input.dtype = NPUSIM_FLOAT32;
    output.data = scores;
    output.bytes = CLASSES * sizeof *scores;
    output.dtype = NPUSIM_FLOAT32;
    options.weights = weights;
    status = npusim_executor_call(executor, 0, &input, 1, &output, 1, &options);
  }
  npusim_executor_free(executor); /* in any order; null is fine */
  npusim_weights_free(weights);
  npusim_program_free(program);
  npusim_device_free(device);
  return status;
}

int main(int count, char** arguments) {
  float image[SIDE * SIDE], scores[CLASSES];
  const char* wrong;
  int best = 0, i;
  if (count != 4) return fail("usage: classify PROGRAM.npubin WEIGHTS IMAGE.png");
  wrong = read_image(arguments[3], image);
  if (wrong != NULL) return fail(wrong);
  if (classify(arguments[1], arguments[2], image, scores) != NPUSIM_OK)
    return fail(npusim_last_error());
  for (i = 1; i < CLASSES; ++i)
    if (scores[i] > scores[best]) best = i;
  printf("%d\n", best);
  return 0;
}
