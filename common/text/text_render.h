/* text_render: the render command of baton-text. */
#ifndef BATON_TEXT_TEXT_RENDER_H
#define BATON_TEXT_TEXT_RENDER_H

/* argv[0] is "render"; returns the exit status. */
int text_render_main(int argc, char **argv);

#endif
